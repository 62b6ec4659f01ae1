// Properties of every run, whatever its command line: its figures equal the reference's, it moved what was planned, and it
// stayed within its budgets. For tests that draw command lines (drawn_run.h).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {

// The contents of a run's directory.
struct Told {
  std::vector<nlohmann::json> steps;  // metrics.jsonl
  nlohmann::json plan, result;
};

// Compares losses, norms, rates and skipped steps of every step, and held-out losses where both runs evaluated.
void expect_steps_of(const Told& reference, const Told& run, std::uint64_t steps);
// Compares the result: the hash of the weights, the last held-out loss, the skipped steps, the loss scale.
void expect_result_of(const Told& reference, const Told& run);
// For a run that began fresh: the bytes of the planned steps, and the exact peaks.
void expect_moved_as_planned(const Told& run);

// The peaks in `terrace plan --json` must be those of the run's own plan: of the rank that reserves the most.
void expect_planned_peaks(const nlohmann::json& plan, const Told& run);

struct MostBytes {  // of one rank
  std::uint64_t device = std::numeric_limits<std::uint64_t>::max(), host = device, disk = device;
};
// Checks the steps after `done`; earlier ones were computed by another command line, perhaps with other budgets.
void expect_within(const MostBytes& budget, const Told& run, std::uint64_t done);

// The words with the suggestion of a refusal with code 3; nothing if it has no suggestion. `sure` is false if it gives no
// figure, because then another tier may be refused next.
struct Suggested {
  Words words;
  bool sure = false;
};
std::optional<Suggested> suggested(const Words& words, const std::string& error);

}  // namespace terrace::test
