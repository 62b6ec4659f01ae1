// Runs a test's body on ranks of one process, each with a fake GPU; a fake NCCL moves bytes between the GPUs. Sum kernels run
// on the emulated lane.
#pragma once

#include <random>
#include <thread>

#include <terrace/core/cuda/device.h>
#include <terrace/core/math/math.h>
#include <terrace/parallel/comm/nccl/nccl_transport.h>
#include <terrace/tests/support/gpu/emulated_lane.h>
#include <terrace/tests/support/gpu/fake_cuda.h>
#include <terrace/tests/support/gpu/fake_nccl.h>

#include <terrace/tests/parallel/comm/rank_group.h>

namespace terrace::test {

// The kernel as a GPU would run it, on the thread of the fake stream.
inline std::function<void(cuda::CudaStreamHandle, const cuda::FoldWork&)> emulated_fold(
    std::shared_ptr<cuda::CudaRuntime> runtime) {
  const FakeKernel kernel = [](const cuda::CudaLaunch& launch) {
    thread_local std::minstd_rand schedules(std::random_device{}());
    EmulatedCounts counts;
    cuda::fold_ranks(EmulatedLauncher{.counts = &counts, .schedule = schedules() % 8},
                     *static_cast<const cuda::FoldWork*>(launch.arguments));
  };
  return [runtime = std::move(runtime), kernel](cuda::CudaStreamHandle stream, const cuda::FoldWork& work) {
    runtime->launch({.kernel = reinterpret_cast<const void*>(kernel), .arguments = &work, .argument_bytes = sizeof work},
                    stream);
  };
}

struct GpusOptions {
  int multiprocessors = 132;   // an H100's
  bool emulates_folds = true;  // false: the host folds, which is much faster
  std::function<void(const std::string&)> report = [](const std::string& complaint) { ADD_FAILURE() << complaint; };
  // Wraps the transport by which the ranks of NCCL agree.
  std::function<std::shared_ptr<comm::Transport>(int rank, std::shared_ptr<comm::Transport>)> letters =
      [](int /*rank*/, std::shared_ptr<comm::Transport> plain) { return plain; };
};

struct FakeGpuRank {
  // `apart` is off because the contract's tests read the bytes that they exchange, on the host or on the GPU.
  std::shared_ptr<FakeCuda> runtime;
  std::shared_ptr<FakeNccl> nccl = std::make_shared<FakeNccl>(runtime);
  std::unique_ptr<Device> device;
  const bool emulates_folds;
  std::function<void()> before_fold = {};  // runs on the GPU

  explicit FakeGpuRank(ThreadPool& pool, const GpusOptions& options)
      : runtime(std::make_shared<FakeCuda>(FakeCuda::Options{
            .multiprocessors = options.multiprocessors, .apart = false, .pageable_copies = true, .report = options.report})),
        device(cuda::make_device_on(runtime, pool, {}, [](cuda::CudaRuntime&, Device& d) { return make_cpu_math(d.pool()); })),
        emulates_folds(options.emulates_folds) {}
  [[nodiscard]] comm::NcclParts parts() const {
    auto fold = emulates_folds ? emulated_fold(runtime) : host_fold(runtime);
    if (before_fold)
      fold = [before = before_fold, fold, gpu = runtime](cuda::CudaStreamHandle stream, const cuda::FoldWork& work) {
        gpu->launch_touching(stream, {.name = "what comes before a fold"}, before);
        fold(stream, work);
      };
    return {.device = device.get(),
            .library = nccl,
            .fold = fold,
            .multiprocessors = cuda::cuda_multiprocessors(*device),
            .fold_bytes = 64 * kKiB};
  }
};

// Runs on each rank before the body, for example to give its GPU or its NCCL a fault.
using Prepare = std::function<void(int rank, FakeGpuRank&)>;

inline Outcome on_fake_gpus(
    int ranks, const CommunicatorOptions& options, const std::function<void(Rank&)>& body,
    const Prepare& prepare = [](int, FakeGpuRank&) {}, const GpusOptions& gpus = {}) {
  auto hosts = make_thread_communicators(ranks, options), letters = make_thread_communicators(ranks, options);
  Outcome outcome(hosts.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    threads.emplace_back([&, r] {
      ThreadPool pool(1);
      FakeGpuRank gpu(pool, gpus);
      prepare(static_cast<int>(r), gpu);
      auto transport = std::make_shared<comm::NcclTransport>(
          comm::release_transport(std::move(hosts[r])),
          gpus.letters(static_cast<int>(r), comm::release_transport(std::move(letters[r]))), gpu.parts());
      outcome[r] = outcome_of(body, comm::make_communicator(std::move(transport)), *gpu.device);
    });
  }
  for (auto& thread : threads) thread.join();
  return outcome;
}

}  // namespace terrace::test
