// One flipped bit, in any file of a run, is either found or harmless. Found: a documented exit code, and a message that names
// the file. Harmless: the user sees the same weights, losses, held-out loss and text as with the undamaged run. Anything else
// is a failure, especially another hash.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include <fmt/format.h>

#include <terrace/tests/support/environment.h>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

const std::set<int> kDocumented{0, 1, 2, 3, 4, 5};
// The finished run ends after 4 steps. The stopped one commits after a few more, at most as many as the lines that a pipe
// holds.
constexpr auto kFinished = "4", kMore = "14";

// The uses of a run.
enum class Use { resume, finish_again, verify, generate, report };
std::string name_of(Use use) {
  static const std::map<Use, std::string> names{{Use::resume, "resume"},
                                                {Use::finish_again, "finish again"},
                                                {Use::verify, "verify"},
                                                {Use::generate, "generate"},
                                                {Use::report, "report"}};
  return names.at(use);
}

class Flips : public Cli {
 protected:
  // A model of 20,000 weights, because the program runs thousands of times.
  [[nodiscard]] Words small(const Words& more) const {
    return tiny(
        "train",
        flags("--layers 1 --hidden 32 --heads 2 --seq-len 32 --eval-interval 2 --ckpt-interval 2 --resume auto") + more);
  }
  [[nodiscard]] Outcome use(Use what) const {
    switch (what) {
      case Use::resume: return terrace(small({"--steps", kMore}));
      case Use::finish_again: return terrace(small({"--steps", kFinished}));
      case Use::verify: return terrace({"ckpt", "verify", "run"});
      case Use::generate: return terrace({"generate", "run", "--prompt", "The", "--max-tokens", "6"});
      case Use::report: return terrace({"report", "run"});
    }
    return {};
  }

  void put(const std::string& kept) const {
    fs::remove_all(at("run"));
    fs::copy(at(kept), at("run"), fs::copy_options::recursive);
  }

  void flip(const fs::path& file, std::mt19937_64& random) const {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto byte = static_cast<std::streamoff>(random() % fs::file_size(file));
    const auto bit = random() % 8;
    stream.seekg(byte);
    const auto flipped = static_cast<char>(stream.get() ^ (1 << bit));
    stream.seekp(byte);
    stream.put(flipped);
    ASSERT_TRUE(stream.good()) << file << ", byte " << byte;
  }

  // Everything that an undamaged run prints at its end.
  struct End {
    std::string weights, held_out, text;
    std::vector<Step> steps;
  };
  [[nodiscard]] End end_of(const Outcome& trained) const {
    return {.weights = weights_of(trained),
            .held_out = json_in("run/result.json").at("eval_loss").dump(),
            .text = use(Use::generate).out,
            .steps = steps("run")};
  }

  // The end of an undisturbed run.
  [[nodiscard]] End whole() const {
    const auto all = succeeded(use(Use::resume));
    const auto end = end_of(all);
    fs::remove_all(at("run"));
    return end;
  }

  // Returns true if the damage was found, false if it was harmless.
  bool judge(const std::string& file, Use what, const End& end, const std::string& text_before) const {
    const auto outcome = use(what);
    EXPECT_EQ(0, outcome.signal) << outcome.described;
    EXPECT_TRUE(kDocumented.contains(outcome.exit)) << outcome.described;
    const auto name = fs::path(file).filename().string();
    const bool named = outcome.err.find(name) != std::string::npos;
    if (outcome.exit != 0) {
      EXPECT_TRUE(named && outcome.err.find("error: ") != std::string::npos) << outcome.described;
      EXPECT_THAT(outcome.err, Not(HasSubstr("json.exception"))) << outcome.described;
      return true;
    }
    switch (what) {
      case Use::resume: {
        EXPECT_EQ(end.weights, weights_of(outcome)) << outcome.described;
        EXPECT_EQ(end.held_out, json_in("run/result.json").at("eval_loss").dump()) << outcome.described;
        // A line of metrics without its newline is dropped with a warning.
        EXPECT_TRUE(named || end.steps == steps("run")) << outcome.described;
        break;
      }
      case Use::finish_again: EXPECT_EQ(end.weights, weights_of(outcome)) << outcome.described; break;
      case Use::generate:
        EXPECT_TRUE(named || text_before == outcome.out) << outcome.described;  // with a warning, from the commit before
        break;
      case Use::verify:
      case Use::report: break;
    }
    return named;
  }

  // Flips bits at `places` places of each file of the run saved under this name.
  void flip_all(const std::string& kept, const std::vector<Use>& all_uses, const std::map<Use, End>& ends) {
    const auto places = number_from_environment("TERRACE_FLIPS", 6);
    const auto seed = number_from_environment("TERRACE_FLIP_SEED", 1);
    put(kept);
    const auto text = use(Use::generate).out;
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(at(kept)))
      if (entry.is_regular_file() && entry.file_size() > 0) files.push_back(fs::relative(entry.path(), at(kept)).string());
    std::ranges::sort(files);
    fmt::print("seed {}, {} run, {} places of each file: found, harmless\n", seed, kept, places);
    for (const auto& file : files) {
      std::mt19937_64 random(seed);
      std::uint64_t found_places = 0;
      for (std::uint64_t i = 0; i < places; ++i) {
        // Each place is tested with two uses in turn, so that each file is tested with all of them.
        const auto n = all_uses.size();
        std::vector<Use> uses{all_uses[i % n], all_uses[(i + 1 + i / n % (n - 1)) % n]};
        std::ranges::sort(uses, std::ranges::greater());  // uses that change the run come last
        put(kept);
        flip(at("run") / file, random);
        bool found = false;
        for (const auto what : uses) {
          SCOPED_TRACE(fmt::format("{} run, TERRACE_FLIP_SEED={}, place {} of {}, {}", kept, seed, i, file, name_of(what)));
          const auto end = ends.find(what);
          found = judge(file, what, end == ends.end() ? End{} : end->second, text) || found;
          if (HasFailure()) return;
        }
        found_places += found ? 1 : 0;
      }
      fmt::print("  {:<24} {:>4} {:>4}\n", file, found_places, places - found_places);
      std::fflush(stdout);
    }
  }
};

TEST_F(Flips, InAnyFileOfAFinishedRunAreFoundOrHarmless) {
  const auto first = succeeded(use(Use::finish_again));
  const auto four = end_of(first);
  fs::rename(at("run"), at("finished"));
  flip_all("finished", {Use::resume, Use::finish_again, Use::verify, Use::generate, Use::report},
           {{Use::resume, whole()}, {Use::finish_again, four}});
}

TEST_F(Flips, InAnyFileOfAStoppedRunAreFoundOrHarmless) {
  const auto end = whole();
  Child child(launch(small({"--steps", "1000", "--json"})));
  child.read_lines(1);
  child.send(SIGTERM);
  const auto stopped = child.wait();
  ASSERT_EQ(75, stopped.exit) << stopped.described;
  ASSERT_LT(metrics("run").size(), 14U);
  ASSERT_EQ(0, use(Use::report).exit);
  fs::rename(at("run"), at("stopped"));
  flip_all("stopped", {Use::resume, Use::verify, Use::generate, Use::report}, {{Use::resume, end}});
}

// A kept commit is used through its copy. Found: by verify, by copying, or when the copy continues. Harmless: the copy ends as
// the run did.
TEST_F(Flips, InAKeptCommitAreFoundOrHarmless) {
  const auto whole = succeeded(terrace(small({"--steps", kFinished, "--ckpt-keep", "2"})));
  fs::rename(at("run"), at("finished"));
  const auto places = number_from_environment("TERRACE_FLIPS", 6), seed = number_from_environment("TERRACE_FLIP_SEED", 1);
  const auto kept = fs::directory_iterator(at("finished/kept"))->path().filename();
  ASSERT_EQ("step-00000002", kept);
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(at("finished/kept") / kept))
    if (entry.is_regular_file() && entry.file_size() > 0) files.push_back(fs::relative(entry.path(), at("finished")));
  ASSERT_FALSE(files.empty());
  std::ranges::sort(files);
  for (const auto& file : files) {
    std::mt19937_64 random(seed);
    for (std::uint64_t i = 0; i < places; ++i) {
      SCOPED_TRACE(fmt::format("TERRACE_FLIP_SEED={}, place {} of {}", seed, i, file.string()));
      put("finished");
      fs::remove_all(at("again"));
      flip(at("run") / file, random);
      const auto passes = [&](const Words& words) {
        const auto outcome = terrace(words);
        EXPECT_TRUE(outcome.exit == 0 || outcome.exit == 5) << outcome.described;
        EXPECT_TRUE(outcome.exit == 0 || outcome.err.find(file.filename().string()) != std::string::npos) << outcome.described;
        return outcome.exit == 0;
      };
      const bool verified = passes({"ckpt", "verify", "run", "--step", "2"});
      if (!passes({"ckpt", "copy", "run", "again", "--step", "2"})) continue;
      const auto rest = terrace(small({"--steps", kFinished, "--out-dir", "again"}));
      // Lines of metrics have their own checksums, which are compared at a start; no weight depends on them.
      const bool in_metrics = rest.exit == 5 && rest.err.find("metrics.jsonl") != std::string::npos;
      ASSERT_TRUE(rest.exit == 0 || !verified || in_metrics) << "what was verified does not go on: " << rest.described;
      if (rest.exit == 0) {
        EXPECT_EQ(weights_of(whole), weights_of(rest)) << rest.described;
      }
      if (HasFailure()) return;
    }
  }
}

// A tokenizer with a flipped bit may still be readable and give other ids, so every flip must be found.
TEST_F(Flips, InTheTokenizerAreAlwaysFound) {
  ASSERT_EQ(0, terrace({"train-tokenizer", "corpus.txt", "--vocab", "280", "--out", "tokenizer.json"}).exit);
  ASSERT_EQ(0, terrace({"tokenize", "corpus.txt", "--tokenizer", "tokenizer.json", "--out", "ids"}).exit);
  scratch_.write("tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  const auto run_until = [&](const std::string& steps, const Words& more) {
    return terrace(small(Words{"--data", "ids", "--data-format", "u16", "--vocab", "280", "--steps", steps} + more));
  };
  const Words given{"--tokenizer", "tokenizer.json"};
  ASSERT_EQ(0, run_until(kFinished, given).exit);
  fs::rename(at("run"), at("finished"));
  const auto places = number_from_environment("TERRACE_FLIPS", 6), seed = number_from_environment("TERRACE_FLIP_SEED", 1);
  const auto expect_found = [&](const std::string& name) {
    for (const auto& words : {Words{"ckpt", "verify", "run"},
                              {"ckpt", "export", "run", "out"},
                              {"ckpt", "copy", "run", "out"},
                              {"generate", "run", "--prompt", "the"}})
      expect_refusal(terrace(words), 5, {name});
    expect_refusal(run_until(kMore, {}), 5, {name});
    EXPECT_FALSE(fs::exists(at("out")));
    // Giving the flags again restores it.
    const auto resumed = succeeded(run_until(kMore, given));
    EXPECT_EQ(1U, resumed.warnings("the tokenizer that the run in run keeps")) << resumed.described;
    succeeded(use(Use::verify));
  };
  std::mt19937_64 random(seed);
  for (const std::string name : {"tokenizer.json", "tokenizer_config.json"})
    for (std::uint64_t i = 0; i * 3 < places; ++i) {
      SCOPED_TRACE(fmt::format("TERRACE_FLIP_SEED={}, place {} of {}", seed, i, name));
      put("finished");
      flip(at("run/tokenizer") / name, random);
      expect_found(name);
    }
  put("finished");
  fs::remove(at("run/tokenizer/tokenizer_config.json"));
  expect_found("tokenizer_config.json: the file is missing");
  put("finished");
  scratch_.write("run/tokenizer/chat_template.jinja", "{{ messages }}");
  expect_found("chat_template.jinja: the run did not keep this file");
  // Another tokenizer replaces it and is checked from then on.
  ASSERT_EQ(0, terrace({"train-tokenizer", "corpus.txt", "--vocab", "270", "--out", "other.json"}).exit);
  succeeded(run_until("15", {"--tokenizer", "other.json"}));
  EXPECT_EQ(scratch_.read("other.json"), scratch_.read("run/tokenizer/tokenizer.json"));
  EXPECT_EQ(0, use(Use::verify).exit);
}

}  // namespace
}  // namespace terrace::test
