// The metrics of a step, from the trainer and the engine.
//
// Threads: the rank's. Errors: those of the team.
#pragma once

#include <terrace/examples/terrace/config/parallel_config.h>
#include <terrace/examples/terrace/metrics/metrics.h>
#include <terrace/examples/terrace/ranks/team.h>
#include <terrace/parallel/run/engine.h>
#include <terrace/parallel/train/trainer.h>

namespace terrace::cli {

StepMetrics metrics_of(const Engine& engine, const Trainer& trainer, const Trainer::Step& step);

// Combines the metrics of all ranks: the largest peaks, and the sums of the bytes. With --sync-interval gradients are not
// summed, so the norm is the largest one.
StepMetrics of_team(StepMetrics metrics, const ParallelConfig& config, Team& team);

}  // namespace terrace::cli
