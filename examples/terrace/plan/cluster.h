// A cluster that a run is planned for. A profile file has the rates of its nodes, GPUs and links. All data ranks are alike, so
// one rank is planned, or one rank of each pipeline stage.
//
// Threads: any.
// Errors:  Error(ErrorKind::refused) that names the file, the key and what is accepted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <terrace/core/machine/machine.h>
#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

// Rates while everything runs at the same time; a single transfer may be faster. The GPUs of a node share the rates of the
// node.
struct ClusterProfile {
  [[nodiscard]] bool on_cpu() const { return node.gpus == 0; }

  struct {                                                                          // if the nodes have GPUs
    std::uint64_t memory = 0;                                                       // bytes
    double matmul_bf16_flop_s = 0, matmul_fp32_flop_s = 0, matmul_fp64_flop_s = 0;  // reached by a matrix product
    double memory_bytes_s = 0;                                                      // of kernels, reads and writes together
    double upload_bytes_s = 0, download_bytes_s = 0;                                // of its link to the host
  } gpu;
  struct {  // if the nodes have no GPUs; each is one rank
    std::int64_t cores = 0;
    double matmul_bf16_flop_s = 0, matmul_fp32_flop_s = 0, matmul_fp64_flop_s = 0;  // of all cores
  } cpu;
  struct {
    std::int64_t gpus = 0;
    std::uint64_t memory = 0, nvme = 0;
    double memory_bytes_s = 0;                        // of updates on all cores, reads and writes together
    double upload_bytes_s = 0, download_bytes_s = 0;  // of all its GPUs together
    double nvme_read_bytes_s = 0, nvme_write_bytes_s = 0, nvme_both_bytes_s = 0;
    double nvme_latency_s = 0;
  } node;
  struct {
    double within_bytes_s = 0, within_latency_s = 0;    // of one GPU, in each direction
    double between_bytes_s = 0, between_latency_s = 0;  // of one node, in each direction
  } links;
};

ClusterProfile parse_cluster(std::string_view text, const std::string& name);  // `name` is for messages
// Reads a file, or else takes the profile of that name in the program (shipped_clusters.h).
ClusterProfile load_cluster(const std::filesystem::path& file);

struct ClusterSize {
  std::int64_t nodes = 1, gpus_per_node = 0;  // 0: all GPUs of a node, or its CPU
};
// Returns the rates that one rank has while all other ranks do the same work.
MachineProfile rank_profile(const ClusterProfile& cluster, const ClusterSize& size);
// The configuration of a run on that cluster: one rank for each GPU, or for each node without GPUs. `auto` budgets are taken
// from the cluster.
RunConfig on_cluster(RunConfig config, const ClusterProfile& cluster, const ClusterSize& size);

}  // namespace terrace::cli
