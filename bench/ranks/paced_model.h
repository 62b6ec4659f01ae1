// A model whose layers take given times and compute nothing: sleeping needs no core, so even a machine with few cores can show
// how the ranks of a long pipeline spend their time. Engine, programs, messages and updates are real.
//
// Owner: values; the model owns its layers. Threads: any.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/model/layer.h>
#include <terrace/parallel/pipeline/pipeline.h>
#include <terrace/parallel/pipeline/simulate.h>
#include <terrace/parallel/walk/simulator.h>

namespace terrace::bench {

// One layer with `parameters` parameters per stage; its first and last layers take no time.
Model paced_model(std::uint32_t stages, const pipeline::StageCosts& costs, std::int64_t parameters);
pipeline::Pipeline paced_pipeline(pipeline::Schedule schedule);

struct PacedCollectives {
  double each_s = 0;     // time of a gather or a reduction
  double results_s = 0;  // CostModel::seconds_of_results()
};

// The costs of these layers for the simulator; everything else costs nothing.
class PacedCosts final : public walk::CostModel {
 public:
  PacedCosts(std::uint32_t stages, pipeline::StageCosts costs, PacedCollectives collectives = {})
      : stages_(stages), costs_(std::move(costs)), collectives_(collectives) {}
  [[nodiscard]] double seconds(const Action& action) const override;
  [[nodiscard]] double seconds_of_results(const Program&) const override { return collectives_.results_s; }

 private:
  std::uint32_t stages_;
  pipeline::StageCosts costs_;
  PacedCollectives collectives_;
};

}  // namespace terrace::bench
