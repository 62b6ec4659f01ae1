// The settings of the pipeline benchmarks: how many ranks, which order, and how long their work takes.
//
// Owner: a benchmark, whose flags point into it. Threads: a value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/bench/bench.h>
#include <terrace/parallel/pipeline/pipeline.h>
#include <terrace/parallel/pipeline/simulate.h>

namespace terrace::bench {

struct PacedSetting {
  std::filesystem::path path = {};
  std::int64_t ranks = 4, micro_batches = 8, virtual_stages = 2, unit_ms = 20;

  std::vector<Flag> flags();
  [[nodiscard]] pipeline::Pipeline pipeline_of(std::string_view order) const;
  [[nodiscard]] pipeline::StageCosts costs_of(const pipeline::Pipeline& pipeline) const;
};
std::vector<std::string> order_names();

}  // namespace terrace::bench
