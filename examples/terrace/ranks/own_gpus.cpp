#include <terrace/examples/terrace/ranks/own_gpus.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/terrace/plan/device.h>

namespace terrace::cli {

void demand_own_gpus(const RunConfig& config, Team& team) {
  if (team.size() == 1) return;
  GpuInfo gpu;
  team.together([&] {
    if (config.on_gpu()) gpu = find_gpu(config, config.found.local_rank);
  });
  const auto all = team.texts(gpu.uuid);
  team.together([&] {
    const auto first = std::ranges::find(all, gpu.uuid);
    const auto rank = first - all.begin();
    if (gpu.uuid.empty() || rank == team.rank()) return;
    throw Error(fmt::format("ranks {} and {} compute on the same GPU, {} ({})\n  give each rank a GPU of its own: leave "
                            "CUDA_VISIBLE_DEVICES out, set another one for each rank, or start fewer ranks here",
                            rank, team.rank(), gpu.name, gpu.pci_bus_id),
                ErrorKind::missing);
  });
}

}  // namespace terrace::cli
