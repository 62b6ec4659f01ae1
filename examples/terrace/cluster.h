// A cluster that is not here: a profile file says what its nodes, GPUs and links can do, and a run is planned as one of its
// ranks would plan it (all are alike).
//
// Threads: any.
// Errors:  Error(Exit::usage) that names the file, the key and what is accepted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <terrace/core/machine.h>
#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

// Rates of everything at once, where one thing alone may be faster: that of the node is shared by its GPUs.
struct ClusterProfile {
  struct {
    std::uint64_t memory = 0;                                                       // bytes
    double matmul_bf16_flop_s = 0, matmul_fp32_flop_s = 0, matmul_fp64_flop_s = 0;  // that a product reaches
    double memory_bytes_s = 0;                                                      // read and written by kernels
    double upload_bytes_s = 0, download_bytes_s = 0;                                // its own link to the host
  } gpu;
  struct {
    std::int64_t gpus = 0;
    std::uint64_t memory = 0, nvme = 0;
    double memory_bytes_s = 0;                        // read and written by updates on all its cores
    double upload_bytes_s = 0, download_bytes_s = 0;  // of all its GPUs together
    double nvme_read_bytes_s = 0, nvme_write_bytes_s = 0, nvme_both_bytes_s = 0;
    double nvme_latency_s = 0;
  } node;
  struct {
    double within_bytes_s = 0, within_latency_s = 0;    // of a GPU, each direction
    double between_bytes_s = 0, between_latency_s = 0;  // of a node, each direction
    std::string sums = "once a node";                   // or "direct": core/links.h
  } links;
};

ClusterProfile parse_cluster(std::string_view text, const std::string& name);  // `name` for messages
ClusterProfile load_cluster(const std::filesystem::path& file);

struct ClusterSize {
  std::int64_t nodes = 1, gpus_per_node = 0;  // 0: all that a node has
};
// What one of the ranks can use while all others do the same.
MachineProfile rank_profile(const ClusterProfile& cluster, const ClusterSize& size);
// The run on that cluster: one data rank a GPU unless --dp says otherwise, and `auto` budgets are the cluster's.
RunConfig on_cluster(RunConfig config, const ClusterProfile& cluster, const ClusterSize& size);

}  // namespace terrace::cli
