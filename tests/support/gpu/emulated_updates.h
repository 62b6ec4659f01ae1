// The GPU's updates with a fake CUDA runtime: kernels in the order of the fake's streams, run by the emulated lane.
//
// Owner: the test. Threads: as LaunchUpdate; the kernels run on the fake's stream.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <terrace/core/cuda/stream.h>
#include <terrace/optimizers/cuda/cuda_optimizer.h>
#include <terrace/optimizers/cuda/layer_update.h>
#include <terrace/optimizers/cuda/update_launch.h>
#include <terrace/tests/support/gpu/emulated_lane.h>
#include <terrace/tests/support/gpu/fake_cuda.h>
#include <terrace/tests/support/gpu/launched_updates.h>

namespace terrace::test {

// `launched` counts updates whose kernels have run.
inline rules::LaunchUpdate emulated_updates(std::shared_ptr<FakeCuda> fake, std::atomic<int>& launched) {
  return
      [fake = std::move(fake), &launched](cuda::CudaStreamHandle stream, std::string_view name,
                                          const OptimizerSettings& settings, const UpdateStep& step, const ChunkUpdate& chunk) {
        launch_update_on(fake, stream, touched_by("an update by " + std::string(name), chunk),
                         [&launched, name = std::string(name), settings, step, own = OwnUpdate(chunk).reached(*fake)] {
                           EmulatedCounts counts;
                           const cuda::UpdateMaps maps{&rules::dynamic8::map_of(rules::dynamic8::Sign::both),
                                                       &rules::dynamic8::map_of(rules::dynamic8::Sign::none)};
                           try {
                             cuda::launch_update(EmulatedLauncher{&counts}, maps, name, settings, step, own.chunk());
                           } catch (const std::exception& error) {
                             ADD_FAILURE() << error.what();
                           }
                           ++launched;
                         });
      };
}

// The kernels of whole layers: each is one operation of the fake's stream, and counts as using everything that the update uses.
// Every launch runs its threads in another order.
struct EmulatedLayerKernels {
  template <class Kernel, class Args>
  void run(const cuda::LaunchShape& shape, const Args& args) const {
    const FakeKernel emulated = [](const cuda::CudaLaunch& launch) {
      const cuda::LaunchShape own{.blocks = {launch.blocks[0], launch.blocks[1], launch.blocks[2]},
                                  .threads = static_cast<int>(launch.threads),
                                  .shared_bytes = launch.shared_bytes};
      try {
        emulate<Kernel>(own, *static_cast<const Args*>(launch.arguments), launch.blocks[0] % 8);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    };
    stream.launch([fake = fake, touched = touched, shape, args, emulated](cuda::CudaStreamHandle handle) {
      const int code = fake->launch({.kernel = reinterpret_cast<const void*>(emulated),
                                     .blocks = {static_cast<unsigned>(shape.blocks[0]), static_cast<unsigned>(shape.blocks[1]),
                                                static_cast<unsigned>(shape.blocks[2])},
                                     .threads = static_cast<unsigned>(shape.threads),
                                     .shared_bytes = shape.shared_bytes,
                                     .arguments = &args,
                                     .argument_bytes = sizeof args},
                                    handle, touched);
      if (code != cuda::kCudaSuccess) throw std::runtime_error("cudaLaunchKernel failed");
    });
    ++launched;
  }
  const std::shared_ptr<FakeCuda>& fake;
  cuda::CudaStream& stream;
  std::atomic<int>& launched;
  FakeCuda::Touched touched;
};

inline rules::EnqueueLayer emulated_layer_updates(std::shared_ptr<FakeCuda> fake, std::atomic<int>& launched) {
  return [fake = std::move(fake), &launched](Stream& stream, std::string_view name, const OptimizerSettings& settings,
                                             const UpdateStep& step, const LayerUpdate& layer) {
    const cuda::UpdateMaps maps{&rules::dynamic8::map_of(rules::dynamic8::Sign::both),
                                &rules::dynamic8::map_of(rules::dynamic8::Sign::none)};
    auto touched = touched_by("an update by " + std::string(name), *make_optimizer(name, settings)->layer_unit(), layer);
    cuda::enqueue_layer_update(EmulatedLayerKernels{fake, cuda::cuda_stream(stream), launched, std::move(touched)}, stream,
                               maps, name, settings, step, layer);
  };
}

}  // namespace terrace::test
