// NCCL between the ranks of one process, on streams of the fake CUDA runtime. Messages are matched by (handle group, source,
// destination) in order, on the streams' own threads, so that a missing rank blocks its peers' streams as on GPUs. A launch
// keeps its blocks of the GPU (fake_cuda.h) until it ends.
//
// Misuse is reported: a handle after its abort; joining, or a first message between two ranks, while a kernel waits for another
// GPU, because NCCL then allocates memory. Launches of several communicators in different orders on different GPUs are refused,
// too: a launch that can only run after another one has ended, although that one waits for it (LaunchLog).
//
// Owner:   shared by the transports of one rank; ranks find each other by their ids, which are valid in the process.
// Threads: any, as for NCCL. Errors: those that the test requested.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/cuda/runtime.h>
#include <terrace/parallel/comm/nccl/nccl_fold.h>
#include <terrace/parallel/comm/nccl/nccl_library.h>

namespace terrace::test {

class FakeCuda;

inline constexpr int kNcclSystemError = 2, kNcclInvalidUsage = 5, kNcclRemoteError = 6;

class FakeNccl final : public comm::NcclLibrary {
 public:
  struct Options {
    // By default, all memory counts as a GPU's.
    std::function<bool(const void*)> is_device_memory = [](const void*) { return true; };
    std::function<void(const std::string&)> report = {};  // of misuse; by default that of the runtime
    std::function<void(std::uint64_t)> before_send = {};  // with the message's number
    bool any_order = false;                               // true: launches in any order are run
    bool join_hangs = false;                              // this rank never joins
    int join_result = comm::kNcclInProgress;              // what joined() says when others are awaited
    std::function<void(int)> joins = {};                  // with the most blocks of a call
  };
  FakeNccl(std::shared_ptr<cuda::CudaRuntime> runtime, Options options)
      : runtime_(std::move(runtime)), options_(std::move(options)) {}
  explicit FakeNccl(std::shared_ptr<cuda::CudaRuntime> runtime) : FakeNccl(std::move(runtime), Options{}) {}

  // This rank's messages from number `number` on (counted from 0) are lost, and trouble() reports that.
  void lose_messages_from(std::uint64_t number) { lose_from_ = number; }
  [[nodiscard]] std::uint64_t messages() const { return messages_; }
  [[nodiscard]] std::uint64_t groups_ended() const { return *ended_; }  // groups of calls that have ended on the streams
  [[nodiscard]] bool aborts() const { return aborts_; }                 // whether an abort was requested

  int make_id(comm::NcclId* id) override;
  int begin_join(comm::NcclHandle* handle, const comm::NcclJoin& how) override;
  int joined(comm::NcclHandle handle) override;
  int leave(comm::NcclHandle handle) override;
  int abort(comm::NcclHandle handle) override;
  int trouble(comm::NcclHandle handle) override;
  int group_start() override;
  int group_end() override;
  int send(const void* from, std::size_t bytes, int peer, comm::NcclHandle handle, cuda::CudaStreamHandle stream) override;
  int receive(void* to, std::size_t bytes, int peer, comm::NcclHandle handle, cuda::CudaStreamHandle stream) override;
  int all_gather(const void* mine, void* all, std::size_t bytes, comm::NcclHandle handle,
                 cuda::CudaStreamHandle stream) override;
  int broadcast(void* data, std::size_t bytes, int root, comm::NcclHandle handle, cuda::CudaStreamHandle stream) override;
  bool is_device_memory(int device, const void* data) override {
    runtime_->set_device(device);
    return options_.is_device_memory(data);
  }
  std::string text(int result) override { return "a made-up NCCL error (" + std::to_string(result) + ")"; }

 private:
  struct Message;
  int add(const Message& message, cuda::CudaStreamHandle stream);
  std::shared_ptr<ncclComm> seat_of(comm::NcclHandle handle);
  [[nodiscard]] std::byte* reach(const void* data) const;
  void keep(std::shared_ptr<void> batch);
  void report(const std::string& misuse) const;
  [[nodiscard]] FakeCuda* fake_gpu() const;

  const std::shared_ptr<cuda::CudaRuntime> runtime_;
  const Options options_;
  std::atomic<std::uint64_t> messages_{0};
  const std::shared_ptr<std::atomic<std::uint64_t>> ended_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  std::atomic<bool> aborts_{false};
  std::uint64_t lose_from_ = ~0ULL;
  std::mutex mutex_;
  std::vector<std::shared_ptr<void>> batches_;  // kept, because a failing stream drops operations
};

// The fold on a GPU's stream, computed by the host's fold().
std::function<void(cuda::CudaStreamHandle, const cuda::FoldWork&)> host_fold(std::shared_ptr<cuda::CudaRuntime> runtime);

}  // namespace terrace::test
