// -h, --help, help, version, completions and man.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <regex>
#include <sstream>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

using nlohmann::json;

constexpr std::size_t kRows = 24, kColumns = 80, kMostColumns = 100;

std::size_t columns_in(const std::string& line) {
  return static_cast<std::size_t>(std::ranges::count_if(line, [](char c) { return (c & 0xc0) != 0x80; }));
}

std::size_t widest(const std::string& text) {
  std::size_t most = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) most = std::max(most, columns_in(line));
  return most;
}

// "a, b, c"
Words listed_in(const std::string& text) {
  Words words;
  std::istringstream in(text);
  for (std::string word; in >> word;) words.push_back(word.ends_with(',') ? word.substr(0, word.size() - 1) : word);
  return words;
}

// The beginning of this flag's line; npos if there is none.
std::size_t entry_of(const std::string& help, const std::string& flag) {
  for (const auto* const end : {" ", "\n"})
    if (const auto at = help.find("\n  " + flag + end); at != std::string::npos) return at;
  return std::string::npos;
}

// The path of the program that a shell would find under this name; empty: none.
std::string on_path(const std::string& name) {
  std::istringstream folders(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    auto path = folder + "/" + name;
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return {};
}

class Help : public Cli {
 protected:
  // The names that the program lists if a name is missing, between the colon and the end of the line.
  [[nodiscard]] Words names_after(const Words& words) const {
    const auto outcome = terrace(words);
    const auto begin = outcome.err.rfind(": ", outcome.err.find('\n'));
    return listed_in(outcome.err.substr(begin + 2, outcome.err.find('\n') - begin - 2));
  }
  // Every command line with a help page: {}, {"train"}, ..., {"bench", "nvme"}, ...
  [[nodiscard]] std::vector<Words> all_commands() const {
    std::vector<Words> all{{}};
    for (const auto& name : names_after({})) all.push_back({name});
    for (const auto& name : names_after({"bench"})) all.push_back({"bench", name});
    EXPECT_GT(all.size(), 25U);
    return all;
  }
  [[nodiscard]] std::string answer(const Words& words) const {
    const auto outcome = succeeded(terrace(words));
    EXPECT_EQ("", outcome.err) << outcome.described;
    return outcome.out;
  }
  // The output of a program of this system; it must accept its arguments.
  [[nodiscard]] Outcome tool(const std::string& path, Words arguments) const {
    auto launched = launch(std::move(arguments));
    launched.program = path;
    return run(launched);
  }
  [[nodiscard]] std::string written(const std::string& name, const Words& words) {
    scratch_.write(name, answer(words));
    return at(name).string();
  }
  // bash's proposals after these words; the last word is unfinished.
  [[nodiscard]] Words proposed(const Words& words) {
    const auto script = written("completions.bash", {"completions", "bash"});
    std::string line = "source " + script + "; COMP_WORDS=(terrace";
    for (const auto& word : words) line += " '" + word + "'";
    line += "); COMP_CWORD=" + std::to_string(words.size()) + "; _terrace; printf '%s\\n' \"${COMPREPLY[@]}\"";
    const auto outcome = tool(on_path("bash"), {"--norc", "-c", line});
    EXPECT_EQ("", outcome.err) << outcome.described;
    return outcome.lines();
  }
};

TEST_F(Help, TheShortOneFitsAScreen) {
  for (const auto& command : all_commands()) {
    const auto help = answer(command + Words{"-h"});
    SCOPED_TRACE(help);
    EXPECT_LE(std::ranges::count(help, '\n'), kRows);
    EXPECT_LE(widest(help), kColumns);
    std::string usage = "Usage: terrace";
    for (const auto& word : command) usage += " " + word;
    EXPECT_TRUE(help.starts_with(usage));
    const bool names_others = command.empty() || command == Words{"bench"};
    EXPECT_THAT(help, HasSubstr(names_others ? "-h\n" : usage.substr(7) + " --help\n"));
  }
}

TEST_F(Help, TheShortOneHasTheCommonFlagsAndExamples) {
  for (const std::string command : {"train", "plan", "config"}) {
    const auto brief = answer({command, "-h"}), full = answer({command, "--help"});
    SCOPED_TRACE(brief);
    std::size_t flags = 0, examples = 0;
    std::istringstream lines(brief);
    for (std::string line; std::getline(lines, line);) {
      examples += static_cast<std::size_t>(line.starts_with("  $ terrace " + command));
      if (!line.starts_with("  --")) continue;
      ++flags;
      EXPECT_NE(std::string::npos, entry_of(full, line.substr(2, line.find(' ', 2) - 2))) << line;
    }
    EXPECT_GE(flags, 15U);
    EXPECT_LE(flags, 20U);
    EXPECT_EQ(3U, examples);
    for (const auto* const flag : {"--data", "--model", "--steps", "--lr", "--nvme-path", "--host-memory", "--out-dir"})
      EXPECT_NE(std::string::npos, entry_of(brief, flag)) << flag;
  }
}

TEST_F(Help, TheLongOneHasEverySetting) {
  const auto settings = json::parse(answer({"config", "--json"}));
  for (const auto* const command : {"train", "plan", "config"}) {
    const auto help = answer({command, "--help"});
    SCOPED_TRACE(help);
    EXPECT_LE(widest(help), kColumns);
    const auto data = entry_of(help, "--data"), model = entry_of(help, "--model");
    const auto facts = help.find("\nFacts of a model");
    ASSERT_NE(std::string::npos, facts);
    EXPECT_LT(data, model);
    std::size_t count = 0;
    for (const auto& section : settings)
      for (const auto& [key, value] : section.items()) {
        const auto at = entry_of(help, "--" + key);
        EXPECT_NE(std::string::npos, at) << key;
        EXPECT_TRUE(key == "data" || key == "model" || model < at) << key;
        ++count;
      }
    EXPECT_GT(count, 100U);
    for (const auto* const flag : {"--config", "--set", "--help", "--heads", "--seed", "--zero", "--window"})
      EXPECT_LT(help.find(std::string(flag)), facts) << flag;
    for (const auto* const flag : {"--rope-base", "--rope-scaling", "--norm-eps", "--query-scalar", "--attention-cap",
                                   "--activation", "--mlp-bias", "--head-dim"})
      EXPECT_LT(facts, entry_of(help, flag)) << flag;
  }
}

TEST_F(Help, NoLineIsWiderThanCanBeRead) {
  for (const auto& command : all_commands()) EXPECT_LE(widest(answer(command + Words{"--help"})), kColumns);

  for (const auto& [columns, least, most] :
       {std::tuple{200, kColumns + 1, kMostColumns}, {90, kColumns + 1, 90}, {70, 61, 70}}) {
    const auto shown = run_on_terminal(launch({"train", "--help"}), static_cast<unsigned short>(columns));
    if (!shown) GTEST_SKIP() << "no pseudo-terminal here";
    const auto& outcome = *shown;
    auto text = outcome.out;
    ASSERT_EQ(0, outcome.exit) << outcome.described;
    std::erase(text, '\r');
    text = text.substr(0, text.find("\nExamples:"));  // examples are not wrapped, so that they can be copied
    EXPECT_GE(widest(text), least) << text;
    EXPECT_LE(widest(text), most) << text;
  }
}

TEST_F(Help, OfACommandIsAlsoACommand) {
  for (const auto& command : all_commands())
    EXPECT_EQ(answer(command + Words{"--help"}), answer(Words{"help"} + command)) << testing::PrintToString(command);
  EXPECT_EQ(answer({"--version"}), answer({"version"}));
  expect_refusal(terrace({"help", "trian"}), 2, {"unknown command \"trian\"; did you mean train?"});
  expect_refusal(terrace({"help", "bench", "nvmee"}), 2, {"unknown bench \"nvmee\"; did you mean nvme?"});
  expect_refusal(terrace({"trian", "-h"}), 2, {"did you mean train?"});
  expect_refusal(terrace({"version", "2"}), 2, {"unexpected argument \"2\""});
}

// A bug report needs the build.
TEST_F(Help, TheVersionNamesTheBuild) {
  const auto text = answer({"version"});
  EXPECT_THAT(text, testing::StartsWith("terrace " TERRACE_VERSION "\n"));
  std::istringstream lines(text);
  std::map<std::string, std::string> told;
  for (std::string name, value; lines >> name && std::getline(lines >> std::ws, value);) told[name] = value;
  EXPECT_TRUE(std::regex_match(told["commit"], std::regex("[0-9a-f]{12,}(\\+changes)?|unknown"))) << told["commit"];
  EXPECT_THAT(told["compiler"], testing::ContainsRegex("[0-9]+\\.[0-9]+"));
  for (const auto* const library : {"oneDNN", "TBB", "liburing", "libnuma", "PCRE2", "sentencepiece", "zlib", "zstd", "NCCL"})
    EXPECT_THAT(told[library], testing::AnyOf("left out", "in the CUDA module", testing::ContainsRegex("[0-9]+\\.[0-9]+")));
}

// Modules are searched in the installation, whatever was built.
TEST_F(Help, TheVersionLooksForModules) {
  scratch_.write("terrace_cuda12.so", "only its name counts");
  const auto modules = [&] {
    auto version = launch({"version"});
    version.environment = {{"TERRACE_MODULE_PATH", scratch_.path().string()}};
    return run(version).out;
  };
  EXPECT_THAT(modules(), AllOf(HasSubstr("CUDA           terrace_cuda12\n"), HasSubstr("MPI            left out\n")));
  scratch_.write("terrace_mpi.so", "only its name counts");
  EXPECT_THAT(modules(), HasSubstr("MPI            terrace_mpi\n"));
}

// An example must not use a flag that the command does not have.
TEST_F(Help, ExamplesUseFlagsThatExist) {
  std::size_t examples = 0, flags = 0;
  for (const auto& command : all_commands()) {
    std::istringstream lines(answer(command + Words{"-h"}));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  $ ")) continue;
      ++examples;
      std::istringstream words(line.substr(line.find("terrace")));
      Words of;
      std::string help;
      for (std::string word; words >> word;) {
        if (word == "terrace" || word == "-n") continue;
        if (word == "--") {
          of.clear();
          help.clear();
          continue;
        }
        const bool name = help.empty() && (of.empty() || (of == Words{"bench"}));
        if (name) {
          of.push_back(word);
          if (of != Words{"bench"}) help = answer(of + Words{"--help"});
        } else if (word.starts_with("--")) {
          ++flags;
          EXPECT_NE(std::string::npos, entry_of(help, word)) << line << ": " << word;
        }
      }
    }
  }
  EXPECT_GT(examples, 20U);
  EXPECT_GT(flags, 20U);
}

TEST_F(Help, BashCompletes) {
  if (on_path("bash").empty()) GTEST_SKIP() << "there is no bash";
  succeeded(tool(on_path("bash"), {"-n", written("checked.bash", {"completions", "bash"})}));
  std::filesystem::create_directory(at("a run"));
  using testing::ElementsAre;
  EXPECT_THAT(proposed({"tr"}), ElementsAre("train", "train-tokenizer"));
  EXPECT_THAT(proposed({"train", "--dty"}), ElementsAre("--dtype"));
  EXPECT_THAT(proposed({"train", "--dtype", "b"}), ElementsAre("bf16"));
  EXPECT_THAT(proposed({"train", "--dtype", "=", "b"}), ElementsAre("bf16"));  // bash splits --dtype=b in this way
  EXPECT_THAT(proposed({"train", "--untied", "--dtype", "="}), ElementsAre("fp32", "bf16", "fp16", "fp64"));
  EXPECT_THAT(proposed({"train", "--recompute", ""}), ElementsAre("auto", "none", "layer"));
  EXPECT_THAT(proposed({"train", "--data", "cor"}), ElementsAre("corpus.txt"));
  EXPECT_THAT(proposed({"train", "--data", "tiny.toml", "cor"}), ElementsAre("corpus.txt"));  // the flag takes several values
  EXPECT_THAT(proposed({"train", "--resume", "a"}), ElementsAre("auto", "a run"));
  EXPECT_THAT(proposed({"plan", "--steps", ""}), ElementsAre(""));  // a number, so there is no proposal
  EXPECT_THAT(proposed({"generate", "a"}), ElementsAre("a run"));
  EXPECT_THAT(proposed({"generate", "a run", "--prom"}), ElementsAre("--prompt"));
  EXPECT_THAT(proposed({"ckpt", "ver"}), ElementsAre("verify"));
  EXPECT_THAT(proposed({"ckpt", "verify", "a"}), ElementsAre("a run"));
  EXPECT_THAT(proposed({"bench", "nv"}), ElementsAre("nvme"));
  EXPECT_THAT(proposed({"bench", "nvme", "--op", "rand"}), ElementsAre("randread"));
  EXPECT_THAT(proposed({"launch", "-n", "2", "--", "pl"}), ElementsAre("plan"));
  EXPECT_THAT(proposed({"launch", "-n", "2", "--", "train", "--dty"}), ElementsAre("--dtype"));
  EXPECT_THAT(proposed({"help", "ch"}), ElementsAre("chat"));
  EXPECT_THAT(proposed({"help", "pre"}), ElementsAre("presets"));
  EXPECT_THAT(proposed({"train", "--preset", "lora-8"}), ElementsAre("lora-8b-24gb"));
  EXPECT_THAT(proposed({"completions", "z"}), ElementsAre("zsh"));
  EXPECT_THAT(proposed({"man", ""}), ElementsAre("flags", "metrics", "exit-codes"));
  EXPECT_THAT(proposed({"nonsense", "--d"}), ElementsAre(""));
}

TEST_F(Help, ZshReadsItsScript) {
  if (on_path("zsh").empty()) GTEST_SKIP() << "there is no zsh";
  const auto checked = succeeded(tool(on_path("zsh"), {"-n", written("_terrace", {"completions", "zsh"})}));
  EXPECT_EQ("", checked.err);
}

TEST_F(Help, FishCompletes) {
  if (on_path("fish").empty()) GTEST_SKIP() << "there is no fish";
  const auto script = written("terrace.fish", {"completions", "fish"});
  succeeded(tool(on_path("fish"), {"--no-execute", script}));
  const auto fish = [&](const std::string& line) {
    return tool(on_path("fish"), {"--no-config", "-c", "source " + script + "; complete -C '" + line + "'"}).out;
  };
  EXPECT_THAT(fish("terrace trai"), HasSubstr("train\t"));
  EXPECT_THAT(fish("terrace train --dty"), HasSubstr("--dtype\t"));
  EXPECT_THAT(fish("terrace train --dtype b"), HasSubstr("bf16"));
  EXPECT_THAT(fish("terrace launch -n 2 -- pl"), HasSubstr("plan\t"));
  EXPECT_THAT(fish("terrace bench nv"), HasSubstr("nvme\t"));
}

TEST_F(Help, CompletionsAreOfAKnownShell) {
  expect_refusal(terrace({"completions", "bsh"}), 2, {"\"bsh\"; did you mean bash?"});
  expect_refusal(terrace({"completions"}), 2, {"bash, zsh or fish"});
}

TEST_F(Help, TheManualPageIsComplete) {
  const auto page = answer({"man"});
  for (const auto& section : json::parse(answer({"config", "--json"})))
    for (const auto& [key, value] : section.items()) {
      std::string name = "--" + key;
      for (std::size_t at = 0; (at = name.find('-', at)) != std::string::npos; at += 2) name.insert(at, "\\");
      EXPECT_THAT(page, HasSubstr("\\fB" + name + "\\fR")) << key;
    }
  for (const auto& command : all_commands()) {
    std::string name = "\n.SS terrace";
    for (const auto& word : command) name += " " + word;
    for (std::size_t at = 0; (at = name.find('-', at)) != std::string::npos; at += 2) name.insert(at, "\\");
    EXPECT_TRUE(command.empty() || page.find(name) != std::string::npos) << name;
  }
  if (on_path("groff").empty()) GTEST_SKIP() << "there is no groff";
  scratch_.write("terrace.1", page);
  const auto set = succeeded(tool(on_path("groff"), {"-man", "-Tutf8", "-ww", at("terrace.1").string()}));
  EXPECT_EQ("", set.err);
  EXPECT_THAT(set.out, HasSubstr("SETTINGS"));
}

}  // namespace
}  // namespace terrace::test
