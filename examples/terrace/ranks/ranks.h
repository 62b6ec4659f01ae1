// Runs a training on one rank, on several threads of this process, or on the processes that a launcher started.
//
// Threads: main's. Errors: that of the first rank that failed; errors of launched ranks name their rank.
#pragma once

#include <terrace/core/base/error.h>
#include <terrace/examples/terrace/config/exit_codes.h>
#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/ranks/team.h>
#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/mesh/features.h>

namespace terrace::cli {

// The model as one rank alone has it, whole and not in tiles.
layers::Transformer transformer_of_one_rank(RunConfig config);
// The features of a run, without those of its degrees. `model`: as it is on one rank.
Features features_of(const RunConfig& config, const layers::Transformer& model);
// Throws Error(ErrorKind::refused) with all problems of the degrees of parallelism on that many ranks.
void demand_degrees(const RunConfig& config, int ranks);
void demand_degrees(const RunConfig& config);  // on as many ranks as the degrees need
// Runs train_rank() on every rank of this process.
Exit train_ranks(RunConfig config);
Exit train_rank(const RunConfig& config, Team& team);  // in trainer.cpp

}  // namespace terrace::cli
