#include <terrace/examples/terrace/bench/bench_table.h>

#include <terrace/bench/disk/nvme_bench.h>
#include <terrace/bench/host_benches.h>
#include <terrace/bench/ranks/pipeline_bench.h>
#include <terrace/examples/terrace/bench/bench_all.h>
#include <terrace/examples/terrace/bench/bench_models.h>

namespace terrace::cli {

namespace {

using Keys = std::vector<std::string_view>;

// The options that a planned step depends on. The others (data, number of steps, commits) have no meaning for a bench.
// "--model" is the option, not the section.
Keys planned() {
  return {"--model",
          "layers",
          "hidden",
          "heads",
          "kv-heads",
          "ffn",
          "seq-len",
          "vocab",
          "head-dim",
          "vocab-tiles",
          "mlp-tiles",
          "mlp-row-tiles",
          "attention-tiles",
          "head-rows",
          "untied",
          "skips",
          "dtype",
          "batch-size",
          "grad-accumulation",
          "optimizer",
          "recipe",
          "momentum",
          "nesterov",
          "param-groups",
          "grad-clip",
          "loss-scale",
          "order",
          "group",
          "recompute",
          "activations",
          "update",
          "memory"};
}

// planned(), and the options that the execution of a step depends on.
Keys done() {
  auto keys = planned();
  keys.insert(keys.end(), {"init-from", "lr", "beta1", "beta2", "eps", "weight-decay", "seed", "threads", "assumed-costs",
                           "machine-profile"});
  return keys;
}

// planned(), and the options that decide the bytes of each parameter on disk.
Keys stored() {
  auto keys = planned();
  keys.insert(keys.end(), {"seed", "threads", "freeze", "lora-rank", "lora-alpha", "lora-targets"});
  return keys;
}

}  // namespace

const std::vector<BenchEntry>& bench_table() {
  static const std::vector<BenchEntry> table{
      {[](const RunConfig&) { return bench::make_nvme_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_chunks_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_stream_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_states_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_ram_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_compute_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_optimizer_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_pcie_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_pipeline_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_bubbles_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_overlap_bench(); }, {}},
      {[](const RunConfig&) { return bench::make_pieces_bench(); }, {}},
      {make_plan_residency_bench, planned()},
      {make_step_bench, done()},
      {make_weights_bench, stored()},
      {make_all_bench, done()},
  };
  return table;
}

}  // namespace terrace::cli
