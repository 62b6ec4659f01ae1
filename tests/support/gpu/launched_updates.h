// The host's updates used like a GPU's: kernels on the streams of a fake GPU, with the bytes that they read and write.
//
// Owner: the optimizer; the fake is shared. Threads: as LaunchUpdate. Errors: those of an update become complaints of the fake.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <terrace/core/cuda/cuda_error.h>
#include <terrace/core/cuda/stream.h>
#include <terrace/core/device/device.h>
#include <terrace/optimizers/cuda/cuda_optimizer.h>
#include <terrace/tests/support/gpu/touched_updates.h>
#include <terrace/tests/support/inline_stream.h>

namespace terrace::test {

// Returns the fake to which a stream belongs.
using FakeOf = std::function<std::shared_ptr<FakeCuda>(cuda::CudaStreamHandle)>;

inline void launch_update_on(const std::shared_ptr<FakeCuda>& fake, cuda::CudaStreamHandle handle, FakeCuda::Touched touched,
                             std::function<void()> run) {
  if (const int code = fake->launch_touching(handle, std::move(touched), std::move(run)))
    throw cuda::CudaError(*fake, code, "cuda:0", "cudaLaunchKernel");
}

inline std::unique_ptr<Optimizer> make_launched_optimizer(std::string_view named, const OptimizerSettings& with,
                                                          FakeOf fake_of) {
  struct Host {
    ThreadPool pool{1};
    std::unique_ptr<Device> device = make_cpu_device(pool);
    std::unique_ptr<Optimizer> optimizer;
  };
  const auto host = std::make_shared<Host>();
  host->optimizer = make_optimizer(named, with);
  return rules::make_cuda_optimizer(
      named, with,
      [host, fake_of](cuda::CudaStreamHandle stream, std::string_view name, const OptimizerSettings&, const UpdateStep& step,
                      const ChunkUpdate& chunk) {
        const auto fake = fake_of(stream);
        launch_update_on(
            fake, stream, touched_by("an update by " + std::string(name), chunk),
            [host, step, own = OwnUpdate(chunk).reached(*fake)] { host->optimizer->update(host->pool, step, own.chunk()); });
      },
      [host, fake_of](Stream& stream, std::string_view name, const OptimizerSettings&, const UpdateStep& step,
                      const LayerUpdate& layer) {
        auto touched = touched_by("an update by " + std::string(name), *host->optimizer->layer_unit(), layer);
        cuda::cuda_stream(stream).launch(
            [host, fake_of, step, touched = std::move(touched), given = OwnLayerUpdate(layer)](cuda::CudaStreamHandle handle) {
              const auto fake = fake_of(handle);
              launch_update_on(fake, handle, touched, [host, step, own = given.reached(*fake)] {
                InlineStream here(host->device.get());
                host->optimizer->enqueue_layer(here, step, own.layer());
              });
            });
      });
}
inline std::unique_ptr<Optimizer> make_launched_optimizer(std::string_view name, const OptimizerSettings& settings,
                                                          std::shared_ptr<FakeCuda> fake) {
  return make_launched_optimizer(name, settings, [fake = std::move(fake)](cuda::CudaStreamHandle) { return fake; });
}

}  // namespace terrace::test
