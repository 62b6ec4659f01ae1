// The library's trainer with the settings of a run, and its errors in the program's words.
//
// Threads: the rank's. Errors: those of Trainer; Error(ErrorKind::corrupt) names the run.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/data/run_data.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/parallel/train/trainer.h>

namespace terrace::cli {

// `ranks`: null for one rank. After a stop signal, held-out sequences can no longer be read, which ends an evaluation.
Trainer::Options trainer_options(const RunConfig& config, RunData& data, Agreement* ranks);
Trainer trainer_of(Engine& engine, Trainer::Options options, const RunDir& dir);

// Computes a step, and throws if it diverged. A diverged step is never committed, and if updates wait for the norm, not
// applied.
std::vector<Trainer::Step> step_of(Trainer& trainer, const RunConfig& config, const RunDir& dir);
// Throws if the held-out loss after the last update is not finite, which no later step would show. Such weights are not
// committed.
void demand_finite(double held_out, std::uint64_t step, const RunConfig& config, const RunDir& dir);

}  // namespace terrace::cli
