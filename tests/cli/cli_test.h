// Shared by all tests of the `terrace` program: a scratch folder with a corpus, a model that trains very quickly, and functions
// to inspect a run.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/english_text.h>

#include <terrace/tests/cli/program.h>

namespace terrace::test {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;
inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The words of a command line, which spaces separate.
Words flags(const std::string& line);

inline constexpr std::uint64_t kCorpusSeed = 7;
inline constexpr std::size_t kCorpusBytes = 20'000;

// A step from metrics.jsonl: the values that must not depend on budgets, tiers or interruptions.
struct Step {
  std::uint64_t step = 0;
  double loss = 0, gradient_norm = 0, rate = 0;
  std::optional<double> held_out;  // the held-out loss, if there was an evaluation after the step
  // Held-out losses are not compared: a run that was stopped and continued may have evaluated after other steps.
  friend bool operator==(const Step& a, const Step& b) {
    return std::tie(a.step, a.loss, a.gradient_norm, a.rate) == std::tie(b.step, b.loss, b.gradient_norm, b.rate) &&
           (!a.held_out || !b.held_out || *a.held_out == *b.held_out);
  }
};

class Cli : public testing::Test {
 protected:
  Cli();

  // terrace WORDS…, in the scratch folder.
  [[nodiscard]] Launch launch(Words words) const;
  [[nodiscard]] Outcome terrace(Words words) const { return run(launch(std::move(words))); }
  // terrace COMMAND with the tiny model, then `more`, which may override it.
  [[nodiscard]] Words tiny(const std::string& command, const Words& more = {}) const;
  [[nodiscard]] Outcome train(const Words& more) const { return terrace(tiny("train", more)); }

  [[nodiscard]] std::filesystem::path at(const std::string& name) const { return scratch_ / name; }
  [[nodiscard]] nlohmann::json json_in(const std::string& name) const;
  [[nodiscard]] std::vector<nlohmann::json> metrics(const std::string& run) const;
  [[nodiscard]] std::vector<Step> steps(const std::string& run) const;

  // What one rank generates from a run, whichever ranks wrote it.
  [[nodiscard]] std::string text_of(const std::string& run, const std::string& prompt = "the ", int tokens = 20) const;

  ScratchFolder scratch_;
};

// Ends the test unless the command ended with 0.
Outcome succeeded(Outcome outcome);
// The properties of every refusal: the exit code, a single "error:", a second line or clause with a remedy, and these words.
void expect_refusal(const Outcome& outcome, int exit, const std::vector<std::string>& said);
// Removes a file of a commit and its copy.
void remove_copies(const std::filesystem::path& file);
// `weights xxh64 <16 hex digits>`, or the final JSON object's weights_xxh64.
std::string weights_of(const Outcome& outcome);

}  // namespace terrace::test
