// Runs a training on one rank, on several threads of this process, or on the processes that a launcher started.
//
// Threads: main's. Errors: that of the first rank that failed; errors of launched ranks name their rank.
#pragma once

#include <terrace/core/base/error.h>
#include <terrace/examples/terrace/config/exit_codes.h>
#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/ranks/team.h>

namespace terrace::cli {

// Throws Error(ErrorKind::refused) with all problems of the degrees of parallelism on that many ranks.
void demand_degrees(const RunConfig& config, int ranks);
void demand_degrees(const RunConfig& config);  // on as many ranks as the degrees need
// Runs train_rank() on every rank of this process.
Exit train_ranks(RunConfig config);
Exit train_rank(const RunConfig& config, Team& team);  // in trainer.cpp

}  // namespace terrace::cli
