// What a run says before its first step: what it trains, from where it goes on, and what the user should know about that. And
// what it says at its end.
//
// Threads: the rank's. Errors: none but those of the screen.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include <terrace/examples/terrace/agreed_plan.h>
#include <terrace/examples/terrace/run_config.h>
#include <terrace/examples/terrace/run_dir.h>
#include <terrace/examples/terrace/screen.h>
#include <terrace/examples/terrace/team.h>

namespace terrace::cli {

struct Start {
  std::uint64_t done = 0;       // steps
  std::vector<int> moved_from;  // how many ranks were on each machine before this resume; empty: not recorded
};
void note_start(Screen& screen, const RunConfig& config, const AgreedPlan& agreed, const RunDir& dir, const Team& team,
                const Start& start);

// At the end of a run: when its held-out loss was lower than at last, and the commands that people give next.
void note_next(Screen& screen, const RunConfig& config, const std::filesystem::path& run, std::uint64_t done);

}  // namespace terrace::cli
