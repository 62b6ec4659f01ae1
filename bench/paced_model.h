// A model whose layers take given times and compute nothing: sleeping needs no core, so a machine of few cores can show what a
// pipeline of many ranks does with its time. Engine, programs, messages and updates are the real ones.
//
// Owner: values; the model owns its layers. Threads: any.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/layer.h>
#include <terrace/parallel/pipeline/pipeline.h>
#include <terrace/parallel/pipeline/simulate.h>
#include <terrace/parallel/simulator.h>

namespace terrace::bench {

// One layer a stage, of so many parameters each; a first and a last layer beside them take no time.
Model paced_model(std::uint32_t stages, const pipeline::StageCosts& costs, std::int64_t parameters);
pipeline::Pipeline paced_pipeline(pipeline::Schedule schedule);

// What the simulator takes these layers for; everything else costs nothing.
class PacedCosts final : public CostModel {
 public:
  PacedCosts(std::uint32_t stages, pipeline::StageCosts costs) : stages_(stages), costs_(std::move(costs)) {}
  [[nodiscard]] double seconds(const Action& action) const override;

 private:
  std::uint32_t stages_;
  pipeline::StageCosts costs_;
};

}  // namespace terrace::bench
