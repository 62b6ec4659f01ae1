// What must hold of a run, whatever its command line: its figures are those of the reference, it moved what was planned, and it
// stayed within its budgets. For tests that draw command lines (drawn_run.h).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli_test.h"

namespace terrace::test {

// What a run left in its directory.
struct Told {
  std::vector<nlohmann::json> steps;  // metrics.jsonl
  nlohmann::json plan, result;
};

// Losses, norms, rates, skipped steps of every step, and held-out losses where both runs evaluated.
void expect_steps_of(const Told& reference, const Told& run, std::uint64_t steps);
// The result: the hash of the weights, the last held-out loss, the skipped steps, the loss scale.
void expect_result_of(const Told& reference, const Told& run);
// Of a run that began anew: the bytes of the planned steps, and the peaks to the byte.
void expect_moved_as_planned(const Told& run);

// `terrace plan --json` says the peaks of the run's own plan, which are those of the rank that reserves most.
void expect_planned_peaks(const nlohmann::json& plan, const Told& run);

struct MostBytes {  // of one rank
  std::uint64_t device = std::numeric_limits<std::uint64_t>::max(), host = device, disk = device;
};
// The steps after `done`, which an earlier command line computed, perhaps within other budgets.
void expect_within(const MostBytes& budget, const Told& run, std::uint64_t done);

// The words with what a refusal with code 3 suggests; nothing where it suggests nothing. `sure` is false where it names no
// figure, so that another tier may be refused next.
struct Suggested {
  Words words;
  bool sure = false;
};
std::optional<Suggested> suggested(const Words& words, const std::string& error);

}  // namespace terrace::test
