// Ranks with one GPU each. The ranks first meet on the host, through the transport below, which compares their calls and
// detects dead ranks; then NCCL moves the bytes without waiting. Bytes in host memory go through the transport below.
//
// Sums have the order of machines.h: ranks send each owner its block, as many bytes as a ring sends, and a kernel of terrace
// adds them. (NCCL's own sums have an order that depends on the machine.) Between machines, BetweenMachines decides the
// messages, also those of gathers and broadcasts.
//
// Calls of all communicators of a rank are launched in one order (launch_order.h). The first call of a communicator, or of a
// lane of messages, makes what it needs: a handle of NCCL with its connections, and memory for sums. It has the whole GPU for
// itself, because CUDA may not allocate memory before all running kernels have ended, and a kernel that waits for another rank
// may wait for this one.
//
// Owner, threads, errors: transport.h. Memory on the GPU is allocated at the first call: NCCL's own memory, which no budget
// counts, and fold_bytes for reductions.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <terrace/core/cuda/branch.h>
#include <terrace/core/device/device.h>
#include <terrace/parallel/comm/between_machines.h>
#include <terrace/parallel/comm/nccl/launch_order.h>
#include <terrace/parallel/comm/nccl/nccl_fold.h>
#include <terrace/parallel/comm/nccl/nccl_library.h>
#include <terrace/parallel/comm/transport.h>

namespace terrace::comm {

struct NcclParts {
  Device* device = nullptr;
  int device_index = 0;
  std::shared_ptr<NcclLibrary> library;
  std::function<void(cuda::CudaStreamHandle, const cuda::FoldWork&)> fold;
  int multiprocessors = 0;                    // of the GPU: it runs a block on each
  std::size_t fold_bytes = kGpuStagingBytes;  // memory for the blocks of other ranks
  std::shared_ptr<LaunchOrder> order = {};    // of the communicator that was split; null: a new one
};

class NcclTransport final : public Transport {
 public:
  // `letters`: a second transport of the same ranks, which exchanges the ids that NCCL's handles are made from.
  NcclTransport(std::shared_ptr<Transport> host, std::shared_ptr<Transport> letters, NcclParts parts);
  ~NcclTransport() override;

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const std::string& name() const override { return host_->name(); }
  const Machines& machines() const override { return host_->machines(); }
  void run(const Call& call, std::uint64_t number) override;
  std::shared_ptr<Transport> split(int color, int key, const std::string& name, std::uint64_t number) override;
  void check(std::uint64_t number, std::chrono::steady_clock::time_point since) override { host_->check(number, since); }
  void fail(const std::string& why) noexcept override;
  void leave() noexcept override;

 private:
  // A handle of NCCL, and the stream on which its calls run.
  struct Channel {
    NcclHandle handle = nullptr;
    Slab first_bytes = {};  // of the messages that make the connections
    std::unique_ptr<Stream> stream;
    std::timed_mutex calls;  // held while the library is called with the handle, and for its abort
  };
  using Route = std::tuple<int, int, int>;  // source, destination, lane

  [[nodiscard]] bool lies_on_device(const Call& call) const;
  void collective(const Call& call, std::uint64_t number, LaunchOrder::Turn& turn);
  void message(Channel& channel, const Call& call, std::uint64_t number, LaunchOrder::Turn& turn);
  void message_to_itself(const Call& call);
  void exchange(cuda::CudaStreamHandle stream, const std::function<ConstBytes(int)>& out, const std::function<Bytes(int)>& in);
  void exchange(cuda::CudaStreamHandle stream, const std::vector<Outgoing>& out, const std::vector<Incoming>& in);
  void between_machines(const Call& call, cuda::CudaStreamHandle stream);
  void fold_blocks(const Call& call, cuda::CudaStreamHandle stream);
  void fold_at_root(const Call& call, cuda::CudaStreamHandle stream);
  // Folds half `half` of the slots.
  void fold_slots(const Reduction& reduction, std::size_t half, const std::byte* own, std::byte* to, std::int64_t count,
                  cuda::CudaStreamHandle stream);
  cuda::CudaBranch& folds();

  [[nodiscard]] Channel& channel_of(const Call& call);
  // The greatest of the numbers that the ranks of a call propose for its launch.
  std::uint64_t greatest_of_all(const Call& call, std::uint64_t mine);
  // The ranks of the call join its channel and connect to each other.
  void join(Channel& channel, const Call& call, std::uint64_t number);
  void join(Channel& channel, const NcclJoin& how, const Call& call, std::uint64_t number);
  void connect(Channel& channel, const NcclJoin& how, const Call& call, std::uint64_t number);
  void letter(const Call& call) { letters_->run(call, ++letters_sent_); }
  // Calls the library with the channel's handle; after the handle's abort there are no such calls.
  void with_handle(Channel& channel, const std::function<void(NcclHandle)>& calls) const;
  void abort(Channel& channel);
  // Issues on the channel, passes the turn on, if there is one, and waits for the end.
  void run_on(Channel& channel, const Call& call, std::uint64_t number, LaunchOrder::Turn* turn,
              const std::function<void(cuda::CudaStreamHandle)>& issue);
  void demand(int result, const char* what) const;
  [[nodiscard]] std::size_t slot_bytes() const;
  [[nodiscard]] std::byte* slot(std::size_t half, int rank) const;

  const std::shared_ptr<Transport> host_, letters_;
  const NcclParts parts_;
  std::atomic<std::uint64_t> letters_sent_{0};
  std::atomic<bool> failed_{false};
  Slab slots_;  // memory for the contributions of other ranks: two halves, each with a slot for every rank
  Channel ranks_;
  std::unique_ptr<cuda::CudaBranch> folds_;  // a branch of ranks_.stream; made on its issuing thread
  std::mutex mutex_;                         // guards routes_
  std::map<Route, Channel> routes_;
};

}  // namespace terrace::comm
