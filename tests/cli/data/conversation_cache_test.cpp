// Conversations are encoded only once for all ranks and starts, and cached tokens are only used for the data that they came
// from.
#include <sys/inotify.h>
#include <unistd.h>

#include <map>

#include <terrace/core/base/files.h>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

class ConversationCache : public Cli {
 protected:
  ConversationCache() {
    EXPECT_EQ(0, terrace({"train-tokenizer", "corpus.txt", "--vocab", "280", "--out", "tokenizer.json"}).exit);
    scratch_.write("chat.jsonl", lines("answer"));
  }
  // One line is not a conversation, and some are longer than a sequence.
  static std::string lines(const std::string& answer) {
    std::string text;
    for (int i = 0; i < 40; ++i)
      text += i == 7 ? "{\"messages\": 3}\n"
                     : R"({"messages":[{"role":"user","content":")" + std::string(i % 9 == 0 ? 200 : 3, 'q') +
                           R"("},{"role":"assistant","content":")" + answer + " " + std::to_string(i) + "\"}]}\n";
    return text;
  }
  [[nodiscard]] Words words(const std::string& run, const Words& more = {}) const {
    return tiny("train", Words{"--data", "chat.jsonl", "--tokenizer", "tokenizer.json", "--seq-len", "64", "--on-bad-line",
                               "skip", "--out-dir", run} +
                             more);
  }
  [[nodiscard]] Outcome learn(const std::string& run, const Words& more = {}) const { return terrace(words(run, more)); }
  // The creation time of each file.
  [[nodiscard]] std::map<std::string, fs::file_time_type> kept() const {
    std::map<std::string, fs::file_time_type> files;
    for (const auto& entry : fs::directory_iterator(folder()))
      if (entry.path().extension() == ".talk") files[entry.path().filename()] = entry.last_write_time();
    return files;
  }
  [[nodiscard]] fs::path folder() const { return at("cache/terrace/tokens"); }
  [[nodiscard]] std::string read(const std::string& name) const { return scratch_.read("cache/terrace/tokens/" + name); }
  void write(const std::string& name, const std::string& bytes) const { scratch_.write("cache/terrace/tokens/" + name, bytes); }
  // The lines about the data at the beginning of a run's output.
  static std::vector<std::string> told(const Outcome& outcome) {
    std::vector<std::string> all;
    for (const auto* const text : {&outcome.out, &outcome.err}) {
      std::istringstream in(*text);
      for (std::string line; std::getline(in, line);)
        if (line.find("conversations") != std::string::npos) all.push_back(line);
    }
    return all;
  }
};

TEST_F(ConversationCache, ASecondStartTellsAndTrainsTheSameAndMakesNothing) {
  const auto first = succeeded(learn("first"));
  const auto made = kept();
  ASSERT_EQ(1U, made.size());
  const auto second = succeeded(learn("second"));
  EXPECT_EQ(weights_of(first), weights_of(second));
  EXPECT_EQ(told(first), told(second));
  EXPECT_THAT(second.out + second.err, HasSubstr("39 conversations: "));
  EXPECT_THAT(second.out + second.err, HasSubstr("1 lines that are none were skipped, the first: chat.jsonl, line 8: "));
  EXPECT_THAT(second.out + second.err, HasSubstr("5 are longer than --seq-len and are cut"));
  EXPECT_EQ(0, learn("longer", {"--seq-len", "128"}).exit);
  EXPECT_EQ(made, kept()) << "made once, for every --seq-len";
  EXPECT_EQ(fs::perms::owner_read | fs::perms::owner_write, fs::status(folder() / made.begin()->first).permissions());
}

// Puts the tokens of other conversations under this cache name: they are used, so the lines are not read again.
TEST_F(ConversationCache, ASecondStartDoesNotReadTheLines) {
  const auto first = learn("first");
  const auto of_first = kept().begin()->first;
  scratch_.write("chat.jsonl", lines("another"));
  ASSERT_NE(weights_of(first), weights_of(learn("other")));
  ASSERT_EQ(2U, kept().size());
  const auto of_other = kept().begin()->first == of_first ? kept().rbegin()->first : kept().begin()->first;
  write(of_other, read(of_first));
  EXPECT_EQ(weights_of(first), weights_of(learn("of kept")));
}

TEST_F(ConversationCache, WhatIsCutOrDamagedIsMadeAnew) {
  const auto first = succeeded(learn("first"));
  const auto name = kept().begin()->first;
  const auto whole = read(name);
  std::vector<std::string> others{"", whole.substr(0, whole.size() / 2), whole.substr(0, whole.size() - 1), whole + "x"};
  for (const auto place : {std::size_t{3}, std::size_t{17}, whole.size() / 2, whole.size() - 40, whole.size() - 1}) {
    auto flipped = whole;
    flipped[place] = static_cast<char>(flipped[place] ^ 4);
    others.push_back(flipped);
  }
  for (std::size_t i = 0; i < others.size(); ++i) {
    write(name, others[i]);
    const auto again = succeeded(learn("again", {"--steps", "1"}));
    EXPECT_EQ(1U, again.warnings("the tokens of chat.jsonl that are kept in")) << i << again.described;
    EXPECT_TRUE(whole == read(name)) << i;
    fs::remove_all(at("again"));
  }
  EXPECT_EQ(weights_of(first), weights_of(learn("again")));
}

TEST_F(ConversationCache, OtherDataTokenizersTemplatesAndSettingsAreOtherTokens) {
  std::size_t made = 0;
  const auto expect_new = [&](const std::string& what, const Words& more = {}) {
    succeeded(learn("run" + std::to_string(made), more));
    EXPECT_EQ(++made, kept().size()) << what;
    EXPECT_EQ(0, learn("again" + std::to_string(made), more).exit);
    EXPECT_EQ(made, kept().size()) << what << " is kept";
  };
  expect_new("the first");
  const auto text = scratch_.read("chat.jsonl");
  auto good = text;
  good.erase(good.find("{\"messages\": 3}\n"), std::string("{\"messages\": 3}\n").size());
  scratch_.write("chat.jsonl", good);
  expect_new("other data");
  expect_new("no bad line", {"--on-bad-line", "stop"});
  scratch_.write("chat_template.jinja",
                 "{% for m in messages %}{{ m.role + ': ' + m.content + '<|endoftext|>' }}{% endfor %}"
                 "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}");
  expect_new("a template");
  scratch_.write("chat_template.jinja",
                 "{% for m in messages %}{{ m.role + '> ' + m.content + '<|endoftext|>' }}{% endfor %}"
                 "{% if add_generation_prompt %}{{ 'assistant> ' }}{% endif %}");
  expect_new("another template");
  expect_new("a day", {"--template-date", "2026-11-26"});
  scratch_.write("tokenizer_config.json", R"({"bos_token": "<|endoftext|>"})");
  expect_new("a token that the template may name");
  ASSERT_EQ(0, terrace({"train-tokenizer", "corpus.txt", "--vocab", "270", "--out", "tokenizer.json"}).exit);
  expect_new("another tokenizer");
  scratch_.write("chat.jsonl", text);
  expect_refusal(learn("none", {"--on-bad-line", "stop"}), 2, {"chat.jsonl, line 8"});
  EXPECT_EQ(made, kept().size()) << "nothing is kept of what is refused";
}

// Two ranks, as threads and as processes, and two runs: only one of them makes the file.
TEST_F(ConversationCache, IsMadeOnceForAllThatBeginTogether) {
  fs::create_directories(folder());
  const files::FileHandle events(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  ASSERT_GE(::inotify_add_watch(events.get(), folder().c_str(), IN_MOVED_TO), 0);
  const auto times_made = [&] {
    alignas(inotify_event) char buffer[16384];
    int count = 0;
    for (ssize_t got = 0; (got = ::read(events.get(), buffer, sizeof buffer)) > 0;)
      for (ssize_t at = 0; at < got;) {
        const auto* const event = reinterpret_cast<const inotify_event*>(buffer + at);
        if (std::string(event->name).ends_with(".talk")) ++count;
        at += static_cast<ssize_t>(sizeof *event + event->len);
      }
    return count;
  };
  succeeded(learn("one"));
  EXPECT_EQ(1, times_made());
  EXPECT_EQ(0, learn("one more").exit);
  EXPECT_EQ(0, times_made());
  std::string text;
  for (int i = 0; i < 100; ++i) text += lines("answer " + std::to_string(i));  // so that encoding takes a moment
  scratch_.write("chat.jsonl", text);
  ASSERT_EQ(0, learn("threads", {"--dp", "2"}).exit);
  EXPECT_EQ(1, times_made());
#ifdef TERRACE_MPIRUN
  scratch_.write("chat.jsonl", text + lines("more"));
  succeeded(terrace(Words{"launch", "-n", "2", "--mpirun", TERRACE_MPIRUN, "--"} + words("ranks")));
  EXPECT_EQ(1, times_made());
#endif
  scratch_.write("chat.jsonl", text + lines("much more"));
  Child a(launch(words("a"))), b(launch(words("b")));
  const auto of_a = a.wait(), of_b = b.wait();
  EXPECT_EQ(0, of_a.exit) << of_a.described;
  EXPECT_EQ(weights_of(of_a), weights_of(of_b));
  EXPECT_EQ(1, times_made());
}

TEST_F(ConversationCache, ThatCannotBeWrittenSaysWhatToDo) {
  scratch_.write("no folder", "");
  auto started = launch(words("none"));
  started.environment["XDG_CACHE_HOME"] = at("no folder").string();
  expect_refusal(run(started), 1, {"no folder/terrace/tokens cannot be made: ", "set XDG_CACHE_HOME"});
  EXPECT_FALSE(fs::exists(at("none")));
}

// With or without the cache, a resumed run notices that the data has changed.
TEST_F(ConversationCache, ARunGoesOnWithItsDataOnly) {
  const auto whole = learn("whole", {"--steps", "4"});
  ASSERT_EQ(0, learn("run", {"--steps", "2"}).exit);
  const auto text = scratch_.read("chat.jsonl");
  scratch_.write("chat.jsonl", lines("answeR"));
  ASSERT_EQ(0, learn("other", {"--steps", "1"}).exit) << "its tokens are kept, too";
  expect_refusal(terrace({"train", "--resume", "run", "--steps", "4"}), 2,
                 {"has changed since it began: ", "chat.jsonl has other bytes"});
  scratch_.write("chat.jsonl", text);
  fs::remove_all(folder());
  EXPECT_EQ(weights_of(whole), weights_of(terrace({"train", "--resume", "run", "--steps", "4"})));
}

}  // namespace
}  // namespace terrace::test
