#include <terrace/examples/terrace/bench_table.h>

#include <terrace/bench/host_benches.h>
#include <terrace/bench/nvme_bench.h>
#include <terrace/bench/pipeline_bench.h>
#include <terrace/examples/terrace/bench_all.h>
#include <terrace/examples/terrace/bench_models.h>

namespace terrace::cli {

const std::vector<BenchEntry>& bench_table() {
  static const std::vector<BenchEntry> table{
      {[](const RunConfig&) { return bench::make_nvme_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_chunks_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_stream_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_ram_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_compute_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_optimizer_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_pcie_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_pipeline_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_bubbles_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_overlap_bench(); }, {}},
      {make_plan_residency_bench, {"model", "train", "memory"}},
      {make_step_bench, {"model", "train", "memory", "assumed-costs", "machine-profile"}},
      {make_all_bench, {"model", "train", "memory", "assumed-costs", "machine-profile"}},
  };
  return table;
}

}  // namespace terrace::cli
