// What a run prints before its first step: what it trains, from where it resumes, and what the user should know about that.
// Also what it prints at its end.
//
// Threads: the rank's. Errors: none but those of the screen.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/ranks/agreed_plan.h>
#include <terrace/examples/terrace/ranks/team.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/examples/terrace/run/screen.h>

namespace terrace::cli {

struct Start {
  std::uint64_t done = 0;       // steps
  std::vector<int> moved_from;  // how many ranks were on each machine before this resume; empty: not recorded
};
void note_start(Screen& screen, const RunConfig& config, const AgreedPlan& agreed, const RunDir& dir, const Team& team,
                const Start& start);

// At the end of a run: says at which step its held-out loss was lower than at the end, and which commands usually come next.
void note_next(Screen& screen, const RunConfig& config, const std::filesystem::path& run, std::uint64_t done);

}  // namespace terrace::cli
