#include <terrace/optimizers/cuda/update.h>

#include <terrace/core/cuda/cuda_lane.h>
#include <terrace/optimizers/cuda/update_launch.h>

namespace terrace::cuda {
namespace {

__device__ constexpr rules::dynamic8::Map kBoth = rules::dynamic8::make_map<rules::dynamic8::Sign::both>();
__device__ constexpr rules::dynamic8::Map kNone = rules::dynamic8::make_map<rules::dynamic8::Sign::none>();

const rules::dynamic8::Map* on_device(const rules::dynamic8::Map& symbol) {
  void* address = nullptr;
  const auto error = cudaGetSymbolAddress(&address, symbol);
  if (error != cudaSuccess) {
    throw Error(std::string("cudaGetSymbolAddress of the codes of 8-bit states: ") + cudaGetErrorString(error) + " (" +
                cudaGetErrorName(error) + ")");
  }
  return static_cast<const rules::dynamic8::Map*>(address);
}

struct UpdateLauncher {
  template <class Kernel, class Args>
  void run(const LaunchShape& shape, const Args& args) const {
    launch<Kernel>(stream, shape, args);
  }
  CudaStreamHandle stream;
};

}  // namespace

UpdateMaps maps_on_device() { return {.both = on_device(kBoth), .none = on_device(kNone)}; }

void launch_update(CudaStreamHandle stream, std::string_view optimizer, const OptimizerSettings& settings,
                   const UpdateStep& step, const ChunkUpdate& chunk) {
  launch_update(UpdateLauncher{stream}, maps_on_device(), optimizer, settings, step, chunk);
}

}  // namespace terrace::cuda
