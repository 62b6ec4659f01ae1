// A pipeline over the layers of a model: a schedule, and the layers that each of its stages has. From it come the programs of
// the ranks, for the one executor.
//
// Pure. Threads: any. Errors: Error(Exit::usage) for schedules that no rank's program can be written for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/parallel/pipeline/connect.h>
#include <terrace/parallel/pipeline/schedule.h>
#include <terrace/parallel/pipeline_parallel.h>
#include <terrace/parallel/program.h>
#include <terrace/parallel/skips.h>

namespace terrace::pipeline {

struct Pipeline {
  Schedule schedule;
  std::vector<std::uint32_t> begins;  // [stage], and one behind: stage s has the layers from begins[s] to begins[s + 1]
  [[nodiscard]] std::uint32_t layers() const { return begins.back(); }
};

// Consecutive layers to stages so that the dearest stage costs as little as can be, and of those ways the most even one. Stages
// without layers come where there are more stages than layers.
std::vector<std::uint32_t> balance(std::span<const double> layer_costs, std::uint32_t stages);

// A stage without layers passes on what it gets: the ranks beside it talk to each other instead.
Pipeline without_empty_stages(const Pipeline& pipeline);

PipelineParallel part_of(const Pipeline& pipeline, std::uint32_t rank);

// A step of one rank: layer actions and messages. Where halves are apart, the last layer's backward is whole, in the place of
// its input half, because it computes the loss as well; and so is the first one's, in the place of its weight half. A layer on
// several ranks has a reduction for all of its groups behind the gradients that it adds up.
//
// A skip that crosses between ranks crosses once, from where it begins to where it ends: the ranks between do not see it. Its
// result travels with what else the one stage's rank has for the other's, and so does its gradient.
Program step_of(const Pipeline& pipeline, std::uint32_t rank, Reduced reduced = Reduced::once, const Skips& skips = {},
                Verdicts verdicts = Verdicts::none);
// So many micro-batches behind one another, in two directions by turns (forwards.h).
Program evaluation_of(const Pipeline& pipeline, std::uint32_t rank, std::uint32_t micro_batches, const Skips& skips = {});

}  // namespace terrace::pipeline
