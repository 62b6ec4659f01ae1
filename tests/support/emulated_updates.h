// The GPU's updates over a CUDA runtime that is a fake: kernels in the order of the fake's streams, run by the emulated lane.
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

#include <terrace/optimizers/cuda/cuda_optimizer.h>
#include <terrace/optimizers/cuda/update_launch.h>
#include <terrace/tests/support/emulated_lane.h>
#include <terrace/tests/support/fake_cuda.h>

namespace terrace::test {

// `launched` counts updates whose kernels have run.
inline LaunchUpdate emulated_updates(std::shared_ptr<FakeCuda> fake, std::atomic<int>& launched) {
  return [fake = std::move(fake), &launched](CudaStreamHandle stream, std::string_view name, const OptimizerSettings& settings,
                                             const UpdateStep& step, const ChunkUpdate& chunk) {
    const auto update = [&launched, name = std::string(name), settings, step, own = chunk,
                         parts = std::vector(chunk.parts.begin(), chunk.parts.end())]() mutable {
      own.parts = parts;
      EmulatedCounts counts;
      const cuda::UpdateMaps maps{&dynamic8::map_of(dynamic8::Sign::both), &dynamic8::map_of(dynamic8::Sign::none)};
      try {
        cuda::launch_update(EmulatedLauncher{&counts}, maps, name, settings, step, own);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
      ++launched;
    };
    // What the launch was given ends with the call; the kernel's own copy ends with the kernel.
    auto work = std::make_unique<std::function<void()>>(update);
    auto* const argument = work.get();
    const FakeKernel kernel = [](const CudaLaunch& launch) {
      const std::unique_ptr<std::function<void()>> run(*static_cast<std::function<void()>* const*>(launch.arguments));
      (*run)();
    };
    const int code = fake->launch(
        {.kernel = reinterpret_cast<const void*>(kernel), .arguments = &argument, .argument_bytes = sizeof argument}, stream);
    if (code != kCudaSuccess) throw std::runtime_error("cudaLaunchKernel failed");
    (void)work.release();
  };
}

}  // namespace terrace::test
