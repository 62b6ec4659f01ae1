#include <terrace/tests/support/gpu/fake_cuda.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <utility>

namespace terrace::test {

// Tells ThreadSanitizer about the order of an operation, or of an event's point.
using Token = std::shared_ptr<char>;

struct FakeCuda::FakeEvent {
  bool live = true;
  Token token = {};  // of the last record
  std::uint64_t recorded = 0, reached = 0;
  FakeStream* stream = nullptr;  // the stream of the last record, and its number of operations before it
  std::uint64_t behind = 0;
  std::map<FakeStream*, std::uint64_t> ended = {};  // operations of each stream that have ended when the event is reached
};

struct FakeCuda::FakeStream {
  struct Operation {  // runs something after an event has reached a point, or lets an event reach a point
    std::function<void()> run = {};
    FakeEvent* event = nullptr;
    std::uint64_t point = 0;
    Token token = std::make_shared<char>();
    Token after = {};  // of the point that it waits for
  };
  struct Wait {  // operation `number` waits for operations of another stream
    std::uint64_t number;
    FakeStream* other;
    std::uint64_t behind;
  };

  bool live = true;
  std::deque<Operation> operations = {};
  bool busy = false;
  std::thread thread = {};
  // Numbers of operations so far: given, begun, allowed to begin, and known by the host to have ended. `unobserved` has the
  // memory accesses of operations that the host does not know to have ended.
  std::uint64_t given = 0, begun = 0, allowed = 0, observed = 0;
  std::map<std::uint64_t, Touched> unobserved = {};
  std::vector<Wait> waits = {};
  std::map<FakeStream*, std::uint64_t> ended = {};  // of each other stream, before this stream's next operation

  [[nodiscard]] bool idle() const { return operations.empty() && !busy; }
};

namespace {

cuda::CudaStreamHandle handle_of(const void* stream) { return static_cast<cuda::CudaStreamHandle>(const_cast<void*>(stream)); }
constexpr std::size_t index_of(FakeCuda::Call call) { return static_cast<std::size_t>(call); }

}  // namespace

const char* FakeCuda::cuda_name(Call call) {
  static constexpr std::array<const char*, kCalls> kNames{"cudaGetDeviceCount",
                                                          "cudaGetDeviceProperties",
                                                          "cudaSetDevice",
                                                          "cudaMemGetInfo",
                                                          "cudaMalloc",
                                                          "cudaFree",
                                                          "cudaHostRegister",
                                                          "cudaHostUnregister",
                                                          "cudaStreamCreateWithFlags",
                                                          "cudaStreamDestroy",
                                                          "cudaStreamSynchronize",
                                                          "cudaMemcpyAsync",
                                                          "cudaLaunchKernel",
                                                          "cudaFuncSetAttribute",
                                                          "cudaEventCreateWithFlags",
                                                          "cudaEventDestroy",
                                                          "cudaEventRecord",
                                                          "cudaEventSynchronize",
                                                          "cudaStreamWaitEvent"};
  return kNames.at(index_of(call));
}

bool FakeCuda::told_by_warning(Call call) {
  return call == Call::set_device || call == Call::free || call == Call::unregister_host || call == Call::destroy_stream ||
         call == Call::destroy_event;
}

FakeCuda::FakeCuda(Options options)
    : options_(std::move(options)),
      memory_(options_.memory_bytes, options_.apart),
      random_(static_cast<std::minstd_rand::result_type>(options_.jitter_seed + options_.lazy_seed)) {}

FakeCuda::~FakeCuda() {
  release();
  const auto left = leaks();
  {
    const Lock lock(mutex_);
    if (!left.empty()) complain("never given back: " + left);
    for (auto& stream : streams_) stream.live = false;
  }
  changed_.notify_all();
  for (auto& stream : streams_)
    if (stream.thread.joinable()) stream.thread.join();
}

// --- Calls for the test ---

void FakeCuda::fail(Fault fault) {
  const Lock lock(mutex_);
  fault_ = fault;
}

void FakeCuda::fail(Call call, Fault fault) {
  const Lock lock(mutex_);
  faults_.at(index_of(call)) = fault;
}

void FakeCuda::fail_operation(std::uint64_t at, int code) {
  const Lock lock(mutex_);
  operation_fault_ = Fault{at, code, true};
}

void FakeCuda::fault(int code) {
  const Lock lock(mutex_);
  sticky_ = code;
}

void FakeCuda::hold() {
  const Lock lock(mutex_);
  held_ = true;
}

void FakeCuda::release() {
  {
    const Lock lock(mutex_);
    held_ = false;
  }
  changed_.notify_all();
}

std::uint64_t FakeCuda::count() const {
  const Lock lock(mutex_);
  return records_.size();
}

std::uint64_t FakeCuda::count(Call call) const {
  const Lock lock(mutex_);
  return counts_.at(index_of(call));
}

std::vector<FakeCuda::Record> FakeCuda::records(Call call) const {
  const Lock lock(mutex_);
  std::vector<Record> out;
  for (const auto& record : records_)
    if (record.call == call) out.push_back(record);
  return out;
}

std::optional<FakeCuda::Call> FakeCuda::struck() const {
  const Lock lock(mutex_);
  return struck_;
}

std::vector<std::string> FakeCuda::complaints() const {
  const Lock lock(mutex_);
  return complaints_;
}

std::string FakeCuda::leaks() const {
  const Lock lock(mutex_);
  auto text = memory_.describe();
  const auto add = [&](std::ptrdiff_t number, const char* what) {
    if (number > 0) text += (text.empty() ? "" : ", ") + std::to_string(number) + what;
  };
  add(std::ranges::count_if(streams_, &FakeStream::live), " streams");
  add(std::ranges::count_if(events_, &FakeEvent::live), " events");
  return text;
}

bool FakeCuda::pointer_is_of_device(const void* data) {
  const Lock lock(mutex_);
  need_device("cudaPointerGetAttributes");
  return memory_.is_device_memory(data);
}

bool FakeCuda::is_device_memory(const void* data) const {
  const Lock lock(mutex_);
  return memory_.is_device_memory(data);
}

bool FakeCuda::is_stream(cuda::CudaStreamHandle handle) const {
  const Lock lock(mutex_);
  return std::ranges::any_of(streams_, [&](const auto& stream) { return handle_of(&stream) == handle; });
}

std::byte* FakeCuda::reach(const void* data) const {
  const Lock lock(mutex_);
  return find(data);
}

std::shared_ptr<void> FakeCuda::host_uses(Touched touched) {
  const Lock lock(mutex_);
  look_for_races(nullptr, touched);
  const auto at = host_uses_.insert(host_uses_.end(), std::move(touched));
  return {this, [this, at](void*) {
            const Lock inner(mutex_);
            host_uses_.erase(at);
          }};
}

std::size_t FakeCuda::used_bytes() const {
  const Lock lock(mutex_);
  return memory_.used_bytes();
}

void FakeCuda::report_misuse(const std::string& text) {
  const Lock lock(mutex_);
  complain(text);
}

bool FakeCuda::begin_waiting_kernel(int blocks, const std::function<bool()>& ended) {
  if (options_.same_gpu) return options_.same_gpu->begin_waiting_kernel(blocks, ended);
  constexpr auto kLook = std::chrono::milliseconds(2);
  Lock lock(mutex_);
  blocks = std::min(blocks, options_.multiprocessors);
  while (waiting_blocks_ + blocks > options_.multiprocessors) {
    changed_.wait_for(lock.inner(), kLook);
    lock.unlock();
    const bool over = ended();
    lock.lock();
    if (over) return false;
  }
  waiting_blocks_ += blocks;
  return true;
}

void FakeCuda::end_waiting_kernel(int blocks) {
  if (options_.same_gpu) return options_.same_gpu->end_waiting_kernel(blocks);
  {
    const Lock lock(mutex_);
    waiting_blocks_ -= std::min(blocks, options_.multiprocessors);
  }
  changed_.notify_all();
}

int FakeCuda::waiting_blocks() const {
  if (options_.same_gpu) return options_.same_gpu->waiting_blocks();
  const Lock lock(mutex_);
  return waiting_blocks_;
}

// --- Common to all calls; under the lock ---

// Returns the error code with which this call must end.
int FakeCuda::begin(const Record& record) {
  const auto of_all = records_.size(), of_kind = counts_.at(index_of(record.call))++;
  records_.push_back(record);
  if (options_.lazy_seed != 0 && !streams_.empty() && random_() % 4 == 0) {  // an adversary lets one continue
    auto& stream = *std::next(streams_.begin(), static_cast<std::ptrdiff_t>(random_() % streams_.size()));
    allow(stream, stream.begun + 1);
  }
  if (sticky_) return sticky_;
  for (const auto& [fault, number] :
       {std::pair{fault_, std::uint64_t{of_all}}, std::pair{faults_.at(index_of(record.call)), of_kind}}) {
    if (!fault || fault->at != number) continue;
    if (!struck_) struck_ = record.call;
    if (fault->sticky) sticky_ = fault->code;
    changed_.notify_all();
    return fault->code;
  }
  return cuda::kCudaSuccess;
}

void FakeCuda::complain(const std::string& text) {
  complaints_.push_back(text);
  if (options_.report) options_.report(text);
}

void FakeCuda::need_device(const char* what) {
  if (!devices_.contains(std::this_thread::get_id())) complain(std::string(what) + " by a thread that never set its device");
}

// The kernel waits for another rank, which may wait for this one; CUDA may wait for the kernel.
void FakeCuda::need_no_waiting_kernel(Call call) {
  if ((options_.same_gpu ? options_.same_gpu->waiting_blocks() : waiting_blocks_) > 0)
    complain(std::string(cuda_name(call)) + " beside a kernel that waits for another GPU");
}

std::byte* FakeCuda::find(const void* data) const {
  auto* const found = memory_.reach(data);
  return found == data && options_.same_gpu ? options_.same_gpu->reach(data) : found;
}

bool FakeCuda::knows(const void* data) const {
  if (memory_.span(data, 1) != 0) return true;
  if (!options_.same_gpu) return false;
  const Lock lock(options_.same_gpu->mutex_);
  return options_.same_gpu->knows(data);
}

FakeCuda::FakeStream* FakeCuda::live_stream(cuda::CudaStreamHandle handle, const char* what) {
  for (auto& stream : streams_)
    if (handle_of(&stream) == handle && stream.live) return &stream;
  complain(std::string(what) + " on a stream that is not there");
  return nullptr;
}

FakeCuda::FakeEvent* FakeCuda::live_event(cuda::CudaEventHandle handle, const char* what) {
  for (auto& event : events_)
    if (static_cast<void*>(&event) == static_cast<void*>(handle) && event.live) return &event;
  complain(std::string(what) + " of an event that is not there");
  return nullptr;
}

// CUDA does not document copies across two adjacent registrations; here they are an error.
int FakeCuda::place_of(const void* data, std::size_t bytes, std::int64_t* number) {
  *number = memory_.span(data, bytes);
  if (*number < 0) {
    complain("cudaMemcpyAsync of " + std::to_string(bytes) + " bytes leaves its allocation or registration");
    return kCudaInvalidValue;
  }
  if (*number == 0 && !options_.pageable_copies) {
    complain("cudaMemcpyAsync of " + std::to_string(bytes) + " bytes from or to memory that is not registered");
  }
  return cuda::kCudaSuccess;
}

void FakeCuda::enqueue(FakeStream& stream, Touched touched, std::function<void()> run) {
  look_for_races(&stream, touched);
  stream.operations.push_back({.run = std::move(run)});
  tell_before(stream.operations.back().token.get());
  stream.unobserved[++stream.given] = std::move(touched);
  changed_.notify_all();
}

void FakeCuda::look_for_races(const FakeStream* stream, const Touched& touched) {
  const auto meets = [&](const Touched& earlier, const char* where) {
    for (const auto& a : earlier.ranges)
      for (const auto& b : touched.ranges) {
        if ((!a.writes && !b.writes) || a.end <= b.begin || b.end <= a.begin) continue;
        complain("a race: " + touched.name + (b.writes ? " writes" : " reads") + " what " + earlier.name +
                 (a.writes ? " writes" : " reads") + where);
        if (options_.stops_at_a_race) sticky_ = 719;  // cudaErrorLaunchFailure
        return true;
      }
    return false;
  };
  for (auto& other : streams_) {
    if (&other == stream || !other.live) continue;
    std::uint64_t ended = 0;
    if (stream)
      if (const auto known = stream->ended.find(&other); known != stream->ended.end()) ended = known->second;
    for (const auto& [number, earlier] : other.unobserved)
      if (number > ended && meets(earlier, " on another stream, and nothing has waited for that")) return;
  }
  for (const auto& use : host_uses_)
    if (meets(use, " on the host meanwhile")) return;
}

void FakeCuda::allow(FakeStream& stream, std::uint64_t operations) {
  stream.allowed = std::max(stream.allowed, operations);
  for (const auto& wait : stream.waits)
    if (wait.number <= operations && wait.other->allowed < wait.behind) allow(*wait.other, wait.behind);
  changed_.notify_all();
}

void FakeCuda::observe(FakeStream& stream, std::uint64_t operations) {
  stream.observed = std::max(stream.observed, operations);
  stream.unobserved.erase(stream.unobserved.begin(), stream.unobserved.upper_bound(stream.observed));
  const auto over = [=](const FakeStream::Wait& wait) { return wait.number <= operations; };
  for (const auto& wait : std::vector(stream.waits))  // a stream that waits for this one recurses here
    if (over(wait) && wait.other->observed < wait.behind) observe(*wait.other, wait.behind);
  std::erase_if(stream.waits, over);
}

// False after a sticky error, or if this operation is chosen to fail.
bool FakeCuda::begin_operation() {
  const Lock lock(mutex_);
  if (operation_fault_ && operations_++ == operation_fault_->at) sticky_ = operation_fault_->code;
  return sticky_ == 0;
}

// Waits for a short random time, chosen by the seed.
void FakeCuda::pause(Lock& lock) {
  if (options_.jitter_seed == 0) return;
  const auto delay = std::chrono::microseconds(random_() % 100);
  lock.unlock();
  std::this_thread::sleep_for(delay);
  lock.lock();
}

// The thread of a stream. After a sticky error no operation runs, as on a GPU whose context is lost; events still pass.
void FakeCuda::run(FakeStream& stream) {
  Lock lock(mutex_);
  for (;;) {
    const auto may_run = [&] {
      const auto& next = stream.operations.front();
      const bool is_event = !next.run;
      if (!is_event && next.event && next.event->reached < next.point) return false;
      return options_.lazy_seed == 0 || is_event || stream.begun < stream.allowed || !stream.live;
    };
    changed_.wait(lock.inner(), [&] {
      return (!stream.operations.empty() && !held_ && may_run()) || (!stream.live && stream.operations.empty());
    });
    if (stream.operations.empty()) return;
    const auto operation = std::move(stream.operations.front());
    stream.operations.pop_front();
    if (operation.run) ++stream.begun;
    stream.busy = true;
    see_after(operation.token.get());
    if (operation.after) see_after(operation.after.get());
    pause(lock);
    lock.unlock();
    if (operation.run) operation.run();
    lock.lock();
    stream.busy = false;
    tell_before(&stream);
    tell_before(operation.token.get());
    if (operation.event && !operation.run) operation.event->reached = operation.point;
    changed_.notify_all();
  }
}

// --- Devices and memory ---

int FakeCuda::device_count(int* count) {
  const Lock lock(mutex_);
  if (const int code = begin({Call::device_count})) return code;
  *count = options_.devices;
  return cuda::kCudaSuccess;
}

int FakeCuda::properties(int device, cuda::CudaProperties* properties) {
  const Lock lock(mutex_);
  if (const int code = begin({Call::properties})) return code;
  if (device < 0 || device >= options_.devices) return 101;
  *properties = {.name = "a fake GPU",
                 .pci_bus_id = "ffff:00:00." + std::to_string(device),
                 .memory_bytes = options_.memory_bytes,
                 .compute_major = 9,
                 .compute_minor = 0,
                 .multiprocessors = options_.multiprocessors,
                 .copy_engines = 2,
                 .shared_bytes = options_.shared_bytes,
                 .l2_bytes = 50 * kMiB};
  return cuda::kCudaSuccess;
}

int FakeCuda::set_device(int device) {
  const Lock lock(mutex_);
  if (const int code = begin({Call::set_device})) return code;
  if (device < 0 || device >= options_.devices) return 101;
  devices_[std::this_thread::get_id()] = device;
  return cuda::kCudaSuccess;
}

int FakeCuda::memory_info(std::size_t* free_bytes, std::size_t* total_bytes) {
  const Lock lock(mutex_);
  if (const int code = begin({Call::memory_info})) return code;
  need_device("cudaMemGetInfo");
  *total_bytes = memory_.capacity_bytes();
  *free_bytes = memory_.capacity_bytes() - memory_.used_bytes();
  return cuda::kCudaSuccess;
}

int FakeCuda::allocate(void** data, std::size_t bytes) {
  const Lock lock(mutex_);
  if (const int code = begin({Call::allocate, nullptr, nullptr, bytes})) return code;
  need_device("cudaMalloc");
  need_no_waiting_kernel(Call::allocate);
  return memory_.allocate(data, bytes, options_.poison);
}

// Waits for the device, as CUDA does. A call that releases something does so even if it returns an error, because the error
// belongs to earlier work.
int FakeCuda::free(void* data) {
  Lock lock(mutex_);
  const int code = begin({Call::free, data});
  need_no_waiting_kernel(Call::free);
  for (auto& stream : streams_) allow(stream, stream.given);
  changed_.wait(lock.inner(), [this] { return std::ranges::all_of(streams_, &FakeStream::idle); });
  for (auto& stream : streams_) {
    observe(stream, stream.given);
    see_after(&stream);
  }
  const int done = memory_.free(data);
  if (done) complain("cudaFree of what was not allocated");
  return code ? code : done;
}

int FakeCuda::register_host(void* data, std::size_t bytes) {
  const Lock lock(mutex_);
  if (const int code = begin({Call::register_host, data, nullptr, bytes})) return code;
  need_device("cudaHostRegister");
  need_no_waiting_kernel(Call::register_host);
  const int code = memory_.add_host(data, bytes);
  if (code) complain("cudaHostRegister of memory that is registered already");
  return code;
}

int FakeCuda::unregister_host(void* data) {
  const Lock lock(mutex_);
  const int code = begin({Call::unregister_host, data});
  need_no_waiting_kernel(Call::unregister_host);
  const int done = memory_.remove_host(data);
  if (done) complain("cudaHostUnregister of what was not registered");
  return code ? code : done;
}

// --- Streams ---

int FakeCuda::create_stream(cuda::CudaStreamHandle* stream) {
  const Lock lock(mutex_);
  if (const int code = begin({Call::create_stream})) return code;
  need_device("cudaStreamCreate");
  auto& made = streams_.emplace_back();
  made.thread = std::thread([this, &made] { run(made); });
  *stream = handle_of(&made);
  return cuda::kCudaSuccess;
}

int FakeCuda::destroy_stream(cuda::CudaStreamHandle handle) {
  Lock lock(mutex_);
  const int code = begin({Call::destroy_stream, handle});
  auto* const stream = live_stream(handle, "cudaStreamDestroy");
  if (!stream) return 400;
  if (!stream->idle()) complain("cudaStreamDestroy of a stream that was not waited for");
  stream->live = false;
  changed_.notify_all();
  lock.unlock();
  stream->thread.join();
  return code;
}

int FakeCuda::synchronize_stream(cuda::CudaStreamHandle handle) {
  Lock lock(mutex_);
  if (const int code = begin({Call::synchronize_stream, handle}); code && !sticky_) return code;
  auto* const stream = live_stream(handle, "cudaStreamSynchronize");
  if (!stream) return 400;
  allow(*stream, stream->given);
  const auto until = stream->given;
  changed_.wait(lock.inner(), [&] { return stream->idle(); });
  observe(*stream, until);
  see_after(stream);
  return sticky_;
}

int FakeCuda::copy_async(void* to, const void* from, std::size_t bytes, cuda::CudaStreamHandle handle) {
  Lock lock(mutex_);
  pause(lock);
  if (const int code = begin({Call::copy_async, to, from, bytes})) return code;
  need_device("cudaMemcpyAsync");
  auto* const stream = live_stream(handle, "cudaMemcpyAsync");
  if (!stream) return 400;
  std::int64_t to_number = 0, from_number = 0;
  if (const int code = place_of(to, bytes, &to_number)) return code;
  if (const int code = place_of(from, bytes, &from_number)) return code;
  Touched touched{.name = "cudaMemcpyAsync of " + std::to_string(bytes) + " bytes"};
  touched.add(static_cast<std::byte*>(to), bytes, true);
  touched.add(static_cast<const std::byte*>(from), bytes, false);
  auto* const here = find(to);
  const auto* const from_here = find(from);
  if (options_.lazy_seed != 0 && stream->idle()) std::memset(here, static_cast<int>(options_.poison), bytes);
  enqueue(*stream, std::move(touched), [=, this] {
    if (!begin_operation()) return;
    {
      const Lock inner(mutex_);
      if (memory_.span(to, bytes) != to_number || memory_.span(from, bytes) != from_number)
        return complain("memory was given back while a copy of it was under way");
    }
    std::memmove(here, from_here, bytes);
  });
  return cuda::kCudaSuccess;
}

int FakeCuda::launch(const cuda::CudaLaunch& launch, cuda::CudaStreamHandle handle, Touched touched) {
  const Lock lock(mutex_);
  if (const int code = begin({Call::launch, launch.kernel, nullptr, launch.argument_bytes})) return code;
  need_device("cudaLaunchKernel");
  if (launch.shared_bytes > options_.shared_bytes) return kCudaInvalidValue;
  auto* const stream = live_stream(handle, "cudaLaunchKernel");
  if (!stream) return 400;
  std::vector<std::max_align_t> arguments(ceil_div(launch.argument_bytes, sizeof(std::max_align_t)));
  if (launch.argument_bytes) std::memcpy(arguments.data(), launch.arguments, launch.argument_bytes);
  auto* const bytes = reinterpret_cast<std::byte*>(arguments.data());
  for (std::size_t at = 0; at + sizeof(void*) <= launch.argument_bytes; at += sizeof(void*)) {
    const void* word = nullptr;
    std::memcpy(&word, bytes + at, sizeof word);
    word = find(word);
    std::memcpy(bytes + at, &word, sizeof word);
  }
  enqueue(*stream, std::move(touched), [this, own = cuda::CudaLaunch(launch), arguments = std::move(arguments)]() mutable {
    if (!begin_operation()) return;
    own.arguments = arguments.data();
    reinterpret_cast<FakeKernel>(const_cast<void*>(own.kernel))(own);
  });
  return cuda::kCudaSuccess;
}

int FakeCuda::launch_touching(cuda::CudaStreamHandle handle, Touched touched, std::function<void()> run) {
  if (options_.launched) options_.launched(touched);
  const Lock lock(mutex_);
  if (const int code = begin({Call::launch})) return code;
  need_device("cudaLaunchKernel");
  auto* const stream = live_stream(handle, "cudaLaunchKernel");
  if (!stream) return 400;
  auto name = touched.name;
  for (const auto& range : touched.ranges)
    if (!knows(range.begin)) complain(name + " uses host memory that is not registered");
  enqueue(*stream, std::move(touched), [this, name = std::move(name), run = std::move(run)] {
    if (!begin_operation()) return;
    try {
      run();
    } catch (const std::exception& error) {
      const Lock inner(mutex_);
      complain(name + ": " + error.what());
      sticky_ = 719;  // cudaErrorLaunchFailure
    }
  });
  return cuda::kCudaSuccess;
}

int FakeCuda::allow_shared_bytes(const void* kernel, std::size_t bytes) {
  const Lock lock(mutex_);
  if (const int code = begin({Call::allow_shared_bytes, kernel, nullptr, bytes})) return code;
  return bytes <= options_.shared_bytes ? cuda::kCudaSuccess : kCudaInvalidValue;
}

// --- Events ---

int FakeCuda::create_event(cuda::CudaEventHandle* event) {
  const Lock lock(mutex_);
  if (const int code = begin({Call::create_event})) return code;
  need_device("cudaEventCreate");
  *event = static_cast<cuda::CudaEventHandle>(static_cast<void*>(&events_.emplace_back()));
  return cuda::kCudaSuccess;
}

int FakeCuda::destroy_event(cuda::CudaEventHandle handle) {
  const Lock lock(mutex_);
  const int code = begin({Call::destroy_event, handle});
  auto* const event = live_event(handle, "cudaEventDestroy");
  if (!event) return 400;
  event->live = false;
  return code;
}

int FakeCuda::record_event(cuda::CudaEventHandle handle, cuda::CudaStreamHandle on) {
  const Lock lock(mutex_);
  if (const int code = begin({Call::record_event, handle, on})) return code;
  need_device("cudaEventRecord");
  auto* const event = live_event(handle, "cudaEventRecord");
  auto* const stream = live_stream(on, "cudaEventRecord");
  if (!event || !stream) return 400;
  stream->operations.push_back({.event = event, .point = ++event->recorded});
  event->token = stream->operations.back().token;
  event->stream = stream;
  event->behind = stream->given;
  event->ended = stream->ended;
  event->ended[stream] = stream->given;
  changed_.notify_all();
  return cuda::kCudaSuccess;
}

int FakeCuda::synchronize_event(cuda::CudaEventHandle handle) {
  Lock lock(mutex_);
  if (const int code = begin({Call::synchronize_event, handle}); code && !sticky_) return code;
  auto* const event = live_event(handle, "cudaEventSynchronize");
  if (!event) return 400;
  auto* const stream = event->stream;  // null: never recorded
  const auto behind = event->behind;
  const auto token = event->token;
  if (stream) allow(*stream, behind);
  changed_.wait(lock.inner(), [event, point = event->recorded] { return event->reached >= point; });
  if (stream) observe(*stream, behind);
  if (token) see_after(token.get());
  return sticky_;
}

int FakeCuda::stream_wait_event(cuda::CudaStreamHandle handle, cuda::CudaEventHandle of) {
  const Lock lock(mutex_);
  if (const int code = begin({Call::stream_wait_event, handle, of})) return code;
  need_device("cudaStreamWaitEvent");
  auto* const event = live_event(of, "cudaStreamWaitEvent");
  auto* const stream = live_stream(handle, "cudaStreamWaitEvent");
  if (!event || !stream) return 400;
  if (!event->stream) return cuda::kCudaSuccess;  // never recorded: as in CUDA, it counts as reached
  stream->operations.push_back({.run = [] {}, .event = event, .point = event->recorded, .after = event->token});
  stream->waits.push_back({++stream->given, event->stream, event->behind});
  for (const auto& [other, operations] : event->ended)
    if (other != stream) stream->ended[other] = std::max(stream->ended[other], operations);
  changed_.notify_all();
  return cuda::kCudaSuccess;
}

std::string FakeCuda::error_name(int code) {
  switch (code) {
    case kCudaInvalidValue: return "cudaErrorInvalidValue";
    case cuda::kCudaOutOfMemory: return "cudaErrorMemoryAllocation";
    case 700: return "cudaErrorIllegalAddress";
    default: return "cudaError" + std::to_string(code);
  }
}

std::string FakeCuda::error_text(int code) { return "text of error " + std::to_string(code); }

}  // namespace terrace::test
