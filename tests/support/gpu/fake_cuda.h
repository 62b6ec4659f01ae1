// A CUDA runtime without a GPU, equally asynchronous: each stream is a thread that runs copies, kernels and event records in
// order. Device memory is separate memory, poisoned when it is allocated, with addresses that fault on the host. Copies and
// kernels access it elsewhere: every address of device memory in a kernel's arguments is replaced by one that the kernel can
// access. Every call is recorded and can be made to fail. Misuse is detected: use of destroyed objects, copies from memory that
// is not registered or was freed, threads without a device, leaks.
//
// Kernels that wait for other GPUs, as those of NCCL do, keep their blocks until they end, and one begins only when the GPU has
// room for it. While one runs, memory must not be allocated, registered or given back: CUDA may then wait for all kernels.
//
// A lazy runtime runs an operation only when something waits for it, except for some that it chooses by its seed. Until then
// the destination of a copy is poisoned, if no earlier operation of its stream can still read it.
//
// Races are detected, too: two operations on different streams, of which one writes what the other one uses, if nothing waited
// for the earlier one before the later one was issued (the host, through events or by synchronising streams; or the later one's
// stream, through an event). The host's own accesses can be reported as well, and must not overlap with an operation.
// ThreadSanitizer sees only this order (hidden_lock.h), so it finds races of unreported accesses.
//
// Owner:   the test, shared with the device. Threads: any.
// Errors:  those that the test requested, as CUDA returns them; misuse goes to Options::report and complaints().
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/core/cuda/runtime.h>
#include <terrace/tests/support/gpu/fake_cuda_memory.h>
#include <terrace/tests/support/hidden_lock.h>

namespace terrace::test {

// The type that CudaLaunch::kernel points to. The arguments are the launch's own copy.
using FakeKernel = void (*)(const cuda::CudaLaunch& launch);

class FakeCuda final : public cuda::CudaRuntime {
 public:
  enum class Call : std::uint8_t {
    device_count,
    properties,
    set_device,
    memory_info,
    allocate,
    free,
    register_host,
    unregister_host,
    create_stream,
    destroy_stream,
    synchronize_stream,
    copy_async,
    launch,
    allow_shared_bytes,
    create_event,
    destroy_event,
    record_event,
    synchronize_event,
    stream_wait_event,
  };
  static constexpr std::size_t kCalls = 19;
  static const char* cuda_name(Call call);  // "cudaMemcpyAsync": an error must contain it
  // Calls that release something, or come before such a call: their errors cannot be thrown, so they only give a warning.
  static bool told_by_warning(Call call);

  struct Touched;
  struct Options {
    int devices = 1;
    int multiprocessors = 4;  // each has room for one block of a kernel that waits for other GPUs
    std::size_t memory_bytes = 256 * kMiB;
    std::size_t shared_bytes = 227 * kKiB;  // per block
    std::byte poison{0xcb};
    bool apart = true;              // false: the host may access device memory
    bool stops_at_a_race = false;   // true: a race is sticky, like a fault of a kernel
    bool pageable_copies = false;   // true: copies from and to unregistered memory are allowed
    std::uint64_t jitter_seed = 0;  // if not 0, operations and copying calls take up to 100 µs longer
    std::uint64_t lazy_seed = 0;    // not 0: the runtime is lazy
    std::function<void(const std::string&)> report = {};
    cuda::CudaProfiler* profiler = nullptr;
    std::function<void(const Touched&)> launched = {};  // called for each launch_touching()
    std::shared_ptr<FakeCuda> same_gpu = {};            // another runtime of this GPU; kernels can also access its memory
  };
  // The bytes that an operation uses.
  struct Touched {
    struct Range {
      const std::byte *begin = nullptr, *end = nullptr;
      bool writes = false;
    };
    std::string name = {};
    std::vector<Range> ranges = {};
    void add(const void* at, std::size_t bytes, bool writes) {
      const auto* const data = static_cast<const std::byte*>(at);
      if (data && bytes != 0) ranges.push_back({data, data + bytes, writes});
    }
  };
  struct Record {
    Call call{};
    const void* to = nullptr;  // or the only address, stream or event
    const void* from = nullptr;
    std::size_t bytes = 0;
  };
  struct Fault {
    std::uint64_t at = 0;  // number of the call, from 0
    int code = 0;
    bool sticky = false;  // all later calls fail, too, as after a fault of a kernel
  };

  FakeCuda() : FakeCuda(Options{}) {}
  explicit FakeCuda(Options options);
  ~FakeCuda() override;

  // Requests a fault: at the n-th call, at the n-th call of one kind, or in the n-th operation while it runs; the latter is
  // sticky.
  void fail(Fault fault);
  void fail(Call call, Fault fault);
  void fail_operation(std::uint64_t at, int code);
  void fault(int code);  // called by an operation to fail
  // Stops the streams before their next operation.
  void hold();
  void release();

  [[nodiscard]] std::uint64_t count() const;
  [[nodiscard]] std::uint64_t count(Call call) const;
  [[nodiscard]] std::vector<Record> records(Call call) const;
  [[nodiscard]] std::optional<Call> struck() const;  // the first call that failed
  [[nodiscard]] std::vector<std::string> complaints() const;
  [[nodiscard]] std::string leaks() const;                      // objects that still exist; empty: none
  [[nodiscard]] std::size_t used_bytes() const;                 // of device memory
  [[nodiscard]] bool is_device_memory(const void* data) const;  // for the test
  [[nodiscard]] bool is_stream(cuda::CudaStreamHandle handle) const;
  [[nodiscard]] bool pointer_is_of_device(const void* data);  // CUDA's answer, for a thread with a device
  // The address at which operations find the bytes of a device address; other addresses are returned unchanged.
  [[nodiscard]] std::byte* reach(const void* data) const;
  void report_misuse(const std::string& text);  // by a library that uses this runtime
  // A kernel that waits for other GPUs, called by its operation: waits for room; false if `ended` before that.
  [[nodiscard]] bool begin_waiting_kernel(int blocks, const std::function<bool()>& ended);
  void end_waiting_kernel(int blocks);
  [[nodiscard]] int waiting_blocks() const;  // of all such kernels that run on this GPU
  [[nodiscard]] const FakeCuda& gpu() const { return options_.same_gpu ? *options_.same_gpu : *this; }
  // Reports that the host uses these bytes until the returned object is destroyed; this runtime must outlive it.
  [[nodiscard]] std::shared_ptr<void> host_uses(Touched touched);

  int device_count(int* count) override;
  int properties(int device, cuda::CudaProperties* properties) override;
  int set_device(int device) override;
  int memory_info(std::size_t* free_bytes, std::size_t* total_bytes) override;
  int allocate(void** data, std::size_t bytes) override;
  int free(void* data) override;
  int register_host(void* data, std::size_t bytes) override;
  int unregister_host(void* data) override;
  int create_stream(cuda::CudaStreamHandle* stream) override;
  int destroy_stream(cuda::CudaStreamHandle stream) override;
  int synchronize_stream(cuda::CudaStreamHandle stream) override;
  int copy_async(void* to, const void* from, std::size_t bytes, cuda::CudaStreamHandle stream) override;
  int launch(const cuda::CudaLaunch& launch, cuda::CudaStreamHandle stream) override {
    return this->launch(launch, stream, {});
  }
  // Each word of the arguments that is a device address is replaced by the address at which kernels find the bytes.
  int launch(const cuda::CudaLaunch& launch, cuda::CudaStreamHandle stream, Touched touched);
  // Like launch(), for a host function that uses these bytes, each at the address that reach() returns. Host memory among them
  // must be registered.
  int launch_touching(cuda::CudaStreamHandle stream, Touched touched, std::function<void()> run);
  int allow_shared_bytes(const void* kernel, std::size_t bytes) override;
  int create_event(cuda::CudaEventHandle* event) override;
  int destroy_event(cuda::CudaEventHandle event) override;
  int record_event(cuda::CudaEventHandle event, cuda::CudaStreamHandle stream) override;
  int synchronize_event(cuda::CudaEventHandle event) override;
  int stream_wait_event(cuda::CudaStreamHandle stream, cuda::CudaEventHandle event) override;
  cuda::CudaProfiler* profiler() override { return options_.profiler; }
  std::string error_name(int code) override;
  std::string error_text(int code) override;

 private:
  struct FakeStream;
  struct FakeEvent;
  using Lock = HiddenLock;

  int begin(const Record& record);
  void complain(const std::string& text);
  void need_device(const char* what);
  void need_no_waiting_kernel(Call call);
  [[nodiscard]] std::byte* find(const void* data) const;
  [[nodiscard]] bool knows(const void* data) const;  // memory that kernels can reach
  FakeStream* live_stream(cuda::CudaStreamHandle handle, const char* what);
  FakeEvent* live_event(cuda::CudaEventHandle handle, const char* what);
  int place_of(const void* data, std::size_t bytes, std::int64_t* number);
  void enqueue(FakeStream& stream, Touched touched, std::function<void()> run);
  bool begin_operation();
  void look_for_races(const FakeStream* stream, const Touched& touched);
  void allow(FakeStream& stream, std::uint64_t operations);    // total that a lazy stream may run
  void observe(FakeStream& stream, std::uint64_t operations);  // the host knows that this many have ended
  void pause(Lock& lock);
  void run(FakeStream& stream);

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  FakeCudaMemory memory_;
  // Kept after their end, so that no handle is ever reused.
  std::list<FakeStream> streams_;
  std::list<FakeEvent> events_;
  std::list<Touched> host_uses_;
  int waiting_blocks_ = 0;
  std::map<std::thread::id, int> devices_;
  std::vector<Record> records_;
  std::array<std::uint64_t, kCalls> counts_{};
  std::optional<Fault> fault_;
  std::array<std::optional<Fault>, kCalls> faults_{};
  std::optional<Fault> operation_fault_;
  std::uint64_t operations_ = 0;
  std::optional<Call> struck_;
  int sticky_ = 0;
  bool held_ = false;
  std::minstd_rand random_;
  std::vector<std::string> complaints_;
};

}  // namespace terrace::test
