// Who trains: this process alone, so many threads of it, or the processes that a launcher started.
//
// Threads: main's. Errors: the first rank's to fail; ranks of a launcher say which one they are.
#pragma once

#include <terrace/core/error.h>
#include <terrace/examples/terrace/run_config.h>
#include <terrace/examples/terrace/team.h>

namespace terrace::cli {

// Runs train_rank() on every rank that this process is.
Exit train_ranks(RunConfig config);
Exit train_rank(const RunConfig& config, Team& team);  // trainer.cpp

}  // namespace terrace::cli
