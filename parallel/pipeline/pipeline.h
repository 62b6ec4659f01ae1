// A pipeline over the layers of a model: a schedule, and the layers of each of its stages. The programs of the ranks, which the
// executor runs, are written from it.
//
// Pure. Threads: any. Errors: Error(ErrorKind::refused) for schedules for which no program can be written.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/parallel/mesh/pipeline_parallel.h>
#include <terrace/parallel/model/skips.h>
#include <terrace/parallel/pipeline/connect.h>
#include <terrace/parallel/pipeline/schedule.h>
#include <terrace/parallel/program/program.h>

namespace terrace::pipeline {

struct Pipeline {
  Schedule schedule;
  std::vector<std::uint32_t> begins;  // [stage + 1]: stage s has the layers from begins[s] to begins[s + 1]
  [[nodiscard]] std::uint32_t layers() const { return begins.back(); }
};

// Assigns consecutive layers to stages so that the most expensive stage is as cheap as possible; of several such ways, it takes
// the most even one. If there are more stages than layers, some stages have no layers.
std::vector<std::uint32_t> balance(std::span<const double> layer_costs, std::uint32_t stages);

// A stage without layers would only forward its input, so the ranks before and after it exchange messages directly.
Pipeline without_empty_stages(const Pipeline& pipeline);

mesh::PipelineParallel placement_of(const Pipeline& pipeline);

// A step of one rank: layer actions and messages. If backwards run in halves, the last layer's backward is still whole, because
// it also computes the loss; it runs in the place of the input half. The first layer's backward is whole too, and runs in the
// place of the weight half. A layer on several ranks has one reduction for all of its groups, after the gradients that it sums.
//
// If a skip begins and ends on different ranks, its tensor is sent once, directly between the two, and so is its gradient.
Program step_of(const Pipeline& pipeline, std::uint32_t rank, Reduced reduced = Reduced::once, const model::Skips& skips = {},
                Verdicts verdicts = Verdicts::none);
// Evaluates this many micro-batches one after the other, in two directions alternately (forwards.h).
Program evaluation_of(const Pipeline& pipeline, std::uint32_t rank, std::uint32_t micro_batches,
                      const model::Skips& skips = {});

}  // namespace terrace::pipeline
