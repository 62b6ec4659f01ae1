// Whatever has the name of a file, no command waits for it, follows it elsewhere, or prints its bytes to a terminal. The error
// names it and the reason.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

class Planted : public Cli {
 protected:
  // A hang would be the failure, so the command is killed after a minute.
  [[nodiscard]] Outcome within(const Words& words) const { return Child(launch(words)).kill_after(std::chrono::minutes(1)); }
  [[nodiscard]] Outcome go_on() const { return within(tiny("train", {"--resume", "auto", "--steps", "6"})); }
  static void expect_named(const Outcome& outcome, const std::string& name) {
    SCOPED_TRACE(outcome.described);
    EXPECT_EQ(0, outcome.signal) << "it waits";
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(name), HasSubstr("not a regular file")));
  }
  static void expect_plain(const std::string& text) {
    for (const unsigned char c : text) EXPECT_TRUE(c == '\n' || c == '\t' || c >= 0x20) << "a control character: " << +c;
    EXPECT_LT(text.size(), 4000U);
  }
};

// A record or an index has a copy, which is used instead; chunks have none.
TEST_F(Planted, APipeInPlaceOfAFileOfTheStore) {
  ASSERT_EQ(0, train({"--ckpt-interval", "2"}).exit);
  const auto longer = [&](const std::string& run) {
    return tiny("train", {"--resume", "auto", "--steps", "6", "--out-dir", run});
  };
  for (const std::string name : {"commit.0", "commit.1", "index.1.json", "index.2.json", "data"}) {
    SCOPED_TRACE(name);
    // Commands that write to the store replace the record or index, so each command gets a new pipe.
    const auto expect_end = [&](int code, const Words& words) {
      for (const auto* const made : {"piped", "copy"}) fs::remove_all(at(made));
      fs::copy(at("run"), at("piped"), fs::copy_options::recursive);
      const auto file = at("piped/store") / name;
      fs::remove(file);
      ASSERT_EQ(0, ::mkfifo(file.c_str(), 0600));
      const auto outcome = within(words);
      expect_named(outcome, name);
      EXPECT_EQ(code, outcome.exit) << outcome.described;
    };
    const int code = name == "data" ? 5 : 0;
    expect_end(5, {"ckpt", "verify", "piped"});
    expect_end(code, {"ckpt", "copy", "piped", "copy"});
    expect_end(code, {"generate", "piped", "--prompt", "The"});
    expect_end(code, longer("piped"));
  }
  EXPECT_EQ(0, within(longer("run")).exit) << "nothing was changed";
}

TEST_F(Planted, APipeInPlaceOfAFileOfTheRun) {
  ASSERT_EQ(0, train({"--ckpt-interval", "2"}).exit);
  for (const auto* const name : {"run.json", "result.json", "metrics.jsonl", "config.toml", "plan.json", "trace.json"}) {
    SCOPED_TRACE(name);
    const auto file = at("run") / name;
    fs::rename(file, at("kept"));
    ASSERT_EQ(0, ::mkfifo(file.c_str(), 0600));
    const std::string read_by_report = "metrics.jsonl plan.json result.json trace.json";
    const auto reported = within({"report", "run"});
    EXPECT_EQ(0, reported.signal) << reported.described;
    if (read_by_report.find(name) != std::string::npos) expect_named(reported, name);
    const auto generated = within({"generate", "run", "--prompt", "The", "--max-tokens", "2"});
    EXPECT_EQ(0, generated.signal) << generated.described;
    if (std::string(name) == "config.toml") expect_named(generated, name);
    expect_named(go_on(), name);
    ASSERT_TRUE(fs::remove(file));
    fs::rename(at("kept"), file);
  }
}

TEST_F(Planted, APipeSocketOrDeviceInPlaceOfAFileThatTheUserNames) {
  ASSERT_EQ(0, ::mkfifo(at("pipe").c_str(), 0600));
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const fs::path here = fs::current_path();
  fs::current_path(scratch_.path());  // the path of a socket must be short
  std::strcpy(address.sun_path, "socket");
  ASSERT_EQ(0, ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address));
  fs::current_path(here);
  for (const auto* const name : {"pipe", "socket", "/dev/zero"})
    for (const auto& words :
         {tiny("plan", {"--config", name}), tiny("plan", {"--machine-profile", name}),
          tiny("plan", {"--cluster-profile", name}), tiny("train", {"--init-from", name}), tiny("train", {"--data", name}),
          tiny("train", {"--data", name, "--dp", "2"}), tiny("train", {"--save", name})}) {
      const auto outcome = within(words);
      expect_named(outcome, name);
      EXPECT_EQ(2, outcome.exit) << outcome.described;
    }
  ::close(socket);
  // A shell's pipe has a writer.
  auto piped = launch({"plan", "--config", "/dev/stdin"});
  piped.in_child = [] {
    int ends[2];
    const std::string settings = "data = [\"corpus.txt\"]\nlayers = 1\nassumed-costs = true\n";
    if (::pipe(ends) != 0 || ::write(ends[1], settings.data(), settings.size()) < 0) ::_exit(kNotPermitted);
    ::close(ends[1]);
    ::dup2(ends[0], STDIN_FILENO);
  };
  succeeded(Child(piped).kill_after(std::chrono::minutes(1)));
}

TEST_F(Planted, ALinkInPlaceOfATemporaryFileIsNotFollowed) {
  scratch_.write("mine", "precious");
  fs::create_symlink("mine", at("w.st.tmp"));
  expect_refusal(train({"--save", "w.st"}), 2, {"w.st.tmp", "not a regular file", "remove that"});
  EXPECT_EQ("precious", scratch_.read("mine"));
  ASSERT_TRUE(fs::remove(at("w.st.tmp")));
  scratch_.write("w.st.tmp", "what a killed run left");
  succeeded(train({"--resume", "auto", "--save", "w.st"}));
  EXPECT_FALSE(fs::exists(at("w.st.tmp")));
  for (const auto* const name : {"run.json.tmp", "run.copy.json.tmp", "config.toml.tmp", "metrics.jsonl.tmp"}) {
    SCOPED_TRACE(name);
    fs::create_symlink(at("mine"), at("run") / name);
    const auto outcome = train({"--resume", "auto", "--steps", "6"});
    EXPECT_EQ(1, outcome.exit) << outcome.described;
    EXPECT_THAT(outcome.err, HasSubstr(name)) << outcome.described;
    EXPECT_EQ("precious", scratch_.read("mine"));
    ASSERT_TRUE(fs::remove(at("run") / name));
  }
  for (const auto* const name :
       {"store/commit.1.tmp", "store/index.3.json.tmp"})  // the store removes files that are not part of its commits
    fs::create_symlink(at("mine"), at("run") / name);
  for (const auto* const name : {"trace.json", "report.html", "result.json", "plan.json"}) {  // the final files
    fs::remove(at("run") / name);
    fs::create_symlink(at("mine"), at("run") / name);
  }
  fs::remove(at("run/result.json"));
  succeeded(train({"--resume", "auto", "--steps", "8"}));
  EXPECT_EQ("precious", scratch_.read("mine"));
  EXPECT_FALSE(fs::is_symlink(at("run/trace.json")));
}

TEST_F(Planted, DamagedJsonIsNamedWithoutALibrarysWords) {
  ASSERT_EQ(0, train({"--save", "w.st"}).exit);
  const std::string deep(200'000, '[');
  for (const std::string& text :
       {std::string("{"), std::string("[]"), std::string(R"({"traceEvents":[{"ph":7,"ts":"x","args":[1],"name":{}}]})"), deep,
        R"({"traceEvents":)" + deep, std::string(R"({"traceEvents":[{"ph":"X","ts":1e999}]})")}) {
    SCOPED_TRACE(text.substr(0, 60));
    scratch_.write("run/trace.json", text);
    const auto outcome = succeeded(terrace({"report", "run"}));
    EXPECT_THAT(outcome.err, Not(HasSubstr("exception"))) << outcome.described;
    const bool list = text.find("\"ph\":7") != std::string::npos;  // a list of invalid events
    EXPECT_EQ(list ? 0U : 1U, outcome.warnings("run/trace.json is not a trace")) << outcome.described;
  }
  for (const auto* const name : {"run.json", "result.json", "metrics.jsonl", "plan.json"}) {
    SCOPED_TRACE(name);
    const auto kept = scratch_.read(std::string("run/") + name);
    for (const auto& text : {deep + "\n", R"({"fingerprint":)" + deep + "\n"}) {
      scratch_.write(std::string("run/") + name, text);
      for (const auto& words :
           {Words{"report", "run"}, Words{"ckpt", "verify", "run"}, tiny("train", {"--resume", "auto", "--steps", "5"})}) {
        const auto outcome = terrace(words);
        EXPECT_EQ(0, outcome.signal) << outcome.described;
        EXPECT_THAT(outcome.err, Not(HasSubstr("exception"))) << outcome.described;
      }
    }
    scratch_.write(std::string("run/") + name, kept);
  }
  scratch_.write("profile.json", deep);
  expect_refusal(terrace(tiny("plan", {"--machine-profile", "profile.json"})), 2, {"profile.json", "nested"});
  scratch_.write("bench.json", deep);
  expect_refusal(terrace({"report", "bench.json"}), 2, {"bench.json", "nested"});
  // A setting of a wrong type, after an edit by hand.
  auto run = json_in("run/run.json");
  run["fingerprint"]["schedule"] = 7;
  for (const auto* const name : {"run/run.json", "run/run.copy.json"}) scratch_.write(name, run.dump());
  expect_refusal(terrace({"ckpt", "verify", "run"}), 5, {"run.json is damaged", "schedule"});
}

// A safetensors file with this header.
std::string weights_with(const std::string& header) {
  const auto length = static_cast<std::uint64_t>(header.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
}

TEST_F(Planted, NamesFromFilesAreShownWithoutControlCharactersAndCut) {
  const std::string evil =
      "\x1b]0;owned\x07\x1b[31m\xff\xc2\x9b"
      "2J" +
      std::string(1'000'000, 'A');
  const std::string in_json = "\\u001b]0;owned\\u0007\\u009b2J" + std::string(1'000'000, 'A');
  const auto refused = [&](const Words& words, int exit, const std::string& file) {
    const auto outcome = terrace(words);
    expect_plain(outcome.err);
    expect_refusal(outcome, exit, {file});
  };
  for (const auto& header :
       {R"({")" + in_json + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", R"({"a":{"dtype":")" + in_json + R"("}})",
        R"({"a":{")" + in_json + R"(":"F32"}})", R"({"a":{"dtype":)" + in_json,
        R"({"a":{"shape":[1e)" + std::string(100'000, '9') + "]}}", R"({"a)" + evil}) {
    scratch_.write("evil.st", weights_with(header));
    refused(tiny("train", {"--init-from", "evil.st", "--out-dir", "next"}), 5, "evil.st");
  }
  for (const auto& text : {"\"" + in_json + "\" = 1\n", "[\"" + in_json + "\"]\na = 1\n", "model = \"" + in_json + "\"\n",
                           evil + " = 1\n", "[train]\n\"" + in_json + "\" = 1\n"}) {
    scratch_.write("evil.toml", text);
    refused({"plan", "--config", "evil.toml"}, 2, "evil.toml");
    refused({"plan", "--cluster-profile", "evil.toml", "--config", "tiny.toml"}, 2, "evil.toml");
  }
  scratch_.write("evil.json", R"({")" + in_json + R"(": 1})");
  refused(tiny("plan", {"--machine-profile", "evil.json"}), 2, "evil.json");
  // This includes the command line.
  const auto outcome = terrace(tiny("train", {"--data", "a\x1b[31mb.txt"}));
  expect_plain(outcome.err);
  expect_refusal(outcome, 2, {"a\\x1b[31mb.txt"});
}

TEST_F(Planted, DeepTomlIsRefused) {
  std::string key = "a";
  for (int i = 0; i < 100'000; ++i) key += ".a";
  for (const auto& text : {key + " = 1\n", "[" + key + "]\n", "a = " + std::string(100'000, '[') + "\n",
                           "x = {" + key + " = 1}\n", "\"a\" . 'b' ." + key + " = 1\n"}) {
    scratch_.write("deep.toml", text);
    SCOPED_TRACE(text.substr(0, 30));
    expect_refusal(terrace({"plan", "--config", "deep.toml"}), 2, {"deep.toml"});
    expect_refusal(terrace({"plan", "--config", "tiny.toml", "--cluster-profile", "deep.toml"}), 2, {"deep.toml"});
  }
  expect_refusal(terrace(tiny("plan", {"--set", "data=" + std::string(20'000, '[')})), 2, {"--set data"});
}

TEST_F(Planted, AKilledCopyIsRepeated) {
  ASSERT_EQ(0, train({"--ckpt-interval", "2"}).exit);
  const auto copy = [&] { return terrace({"ckpt", "copy", "run", "copy"}); };
  ASSERT_EQ(0, copy().exit);
  EXPECT_FALSE(fs::exists(at("copy/unfinished-copy")));
  expect_refusal(copy(), 2, {"copy is not empty"});
  // As after a kill before run.json was written.
  fs::remove(at("copy/run.json"));
  scratch_.write("copy/unfinished-copy", "");
  fs::remove(at("copy/store/commit.1"));
  for (const auto& words : {tiny("train", {"--resume", "auto", "--out-dir", "copy"}), Words{"ckpt", "verify", "copy"}})
    expect_refusal(terrace(words), 2, {"copy is an unfinished copy", "repeat"});
  // Nothing is removed if the folder contains anything else.
  scratch_.write("copy/thesis.txt", "years");
  expect_refusal(copy(), 2, {"thesis.txt"});
  EXPECT_TRUE(fs::exists(at("copy/store/data")));
  fs::rename(at("copy/thesis.txt"), at("copy/store/thesis.txt"));
  expect_refusal(copy(), 5, {"thesis.txt"});
  EXPECT_EQ("years", scratch_.read("copy/store/thesis.txt"));
  fs::remove(at("copy/store/thesis.txt"));
  succeeded(copy());
  EXPECT_EQ(0, terrace({"ckpt", "verify", "copy"}).exit);
  EXPECT_FALSE(fs::exists(at("copy/unfinished-copy")));
}

TEST_F(Planted, ACopyKilledAtAnyMomentIsRepeated) {
  ASSERT_EQ(0, train({"--ckpt-interval", "2"}).exit);
  const auto whole = train({"--out-dir", "whole", "--steps", "6"});
  int killed = 0;
  for (int milliseconds = 0; milliseconds < 40; milliseconds += 4) {
    fs::remove_all(at("copy"));
    const Words words{"ckpt", "copy", "run", "copy"};
    killed += Child(launch(words)).kill_after(std::chrono::milliseconds(milliseconds)).signal == SIGKILL ? 1 : 0;
    if (!fs::exists(at("copy/run.json"))) {
      succeeded(terrace(words));
    }
    EXPECT_EQ(weights_of(whole), weights_of(train({"--resume", "copy", "--steps", "6"})));
  }
  EXPECT_GT(killed, 0);
}

}  // namespace
}  // namespace terrace::test
