#include <terrace/optimizers/cuda/layer_update.h>

#include <terrace/core/cuda/cuda_lane.h>
#include <terrace/core/cuda/stream.h>
#include <terrace/optimizers/cuda/update.h>

namespace terrace::cuda {
namespace {

struct KernelsOfStream {
  template <class Kernel, class Args>
  void run(const LaunchShape& shape, const Args& args) const {
    stream.launch([shape, own = Args(args)](CudaStreamHandle handle) mutable {
      if constexpr (requires { own.maps; }) {  // only the stream's issuing thread can look up their addresses
        const auto maps = maps_on_device();
        for (int s = 0; s < 2; ++s) own.maps[s] = maps.of(own.states[s].format);
      }
      launch<Kernel>(handle, shape, own);
    });
  }
  CudaStream& stream;
};

}  // namespace

void enqueue_layer_update(Stream& stream, std::string_view optimizer, const OptimizerSettings& settings, const UpdateStep& step,
                          const LayerUpdate& layer) {
  enqueue_layer_update(KernelsOfStream{cuda_stream(stream)}, stream, {}, optimizer, settings, step, layer);
}

}  // namespace terrace::cuda
