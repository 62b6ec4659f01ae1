// A block of emulated threads: its fibers, its shared memory and the points where its threads wait for each other. Used by
// emulated_lane.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <terrace/tests/support/gpu/emulated_lane.h>
#include <terrace/tests/support/gpu/emulated_products.h>
#include <terrace/tests/support/gpu/fibers.h>

namespace terrace::test {

inline constexpr int kPoison = 0xff;  // NaN in fp32, bf16 and fp64
inline constexpr std::size_t kSharedAlignment = 128;

// A point where threads wait for each other: the last one to arrive performs the operation and releases the others.
struct Meeting {
  int expected = 0, arrived = 0;
  const char* what = nullptr;  // the operation that the waiting threads have called
  std::uint64_t round = 0;
};

struct Copy {
  std::byte* to;
  const std::byte* from;  // null: zeros
};

struct ThreadState {
  const Meeting* waits = nullptr;
  std::uint64_t round = 0;  // of the meeting for which it waits
  const char* what = nullptr;
  bool ended = false;
  std::deque<std::vector<Copy>> groups;  // committed, oldest first
  std::vector<Copy> begun;
  std::vector<const std::byte*> arrived;  // waited for, but not visible to products yet

  [[nodiscard]] bool can_run() const { return !ended && (waits == nullptr || waits->round != round); }
};

// The bytes of shared memory: exactly the launch's number, so that AddressSanitizer detects accesses beyond the end.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes) : bytes_(bytes) {
    data_ = static_cast<std::byte*>(::operator new(bytes, std::align_val_t(kSharedAlignment)));
  }
  ~SharedMemory() { ::operator delete(data_, std::align_val_t(kSharedAlignment)); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  void poison() const { std::memset(data_, kPoison, bytes_); }
  [[nodiscard]] bool holds(const void* p, std::size_t bytes) const {
    const auto at = reinterpret_cast<std::uintptr_t>(p), begin = reinterpret_cast<std::uintptr_t>(data_);
    return at >= begin && at + bytes <= begin + bytes_;
  }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

class EmulatedBlock {
 public:
  EmulatedBlock(const cuda::LaunchShape& shape, std::uint64_t schedule)
      : shape_(shape), shared_(shape.shared_bytes), fibers_(shape.threads), order_(static_cast<std::size_t>(shape.threads)) {
    std::iota(order_.begin(), order_.end(), 0);
    run_ahead_ = schedule % 2 == 1;
    shared_shift_ = static_cast<std::uint32_t>(128 * ((schedule * 3 + 1) % 8));
    if (schedule == 1) std::ranges::reverse(order_);
    if (schedule > 1) std::ranges::shuffle(order_, std::mt19937_64(schedule));
    position_.resize(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) position_[static_cast<std::size_t>(order_[i])] = i;
  }

  void run(std::array<std::int64_t, 3> at, const std::function<void(EmulatedLane&)>& kernel) {
    block = at;
    shared_.poison();
    threads_.assign(order_.size(), {});
    meetings_.assign(1 + order_.size() / cuda::kWarp, {.expected = cuda::kWarp});
    meetings_[0].expected = shape_.threads;
    products.begin_block(shape_.threads, shape_.shared_bytes);
    failure_ = nullptr;
    fibers_.run(order_[0], [&](int thread) {
      EmulatedLane lane(*this, thread);
      std::exception_ptr failure;
      try {
        kernel(lane);
      } catch (...) {
        failure = std::current_exception();
      }
      if (failure) {  // not inside the handler, which would never end
        failure_ = std::move(failure);
        fibers_.switch_to(Fibers::kCaller);
      }
      threads_[static_cast<std::size_t>(thread)].ended = true;
      next();
    });
    if (failure_) std::rethrow_exception(failure_);
    if (const auto trouble = products.trouble_at_end(); !trouble.empty()) fail(trouble);
  }

  [[nodiscard]] const cuda::LaunchShape& shape() const { return shape_; }
  [[nodiscard]] const SharedMemory& shared() const { return shared_; }
  // Its offset in the address window: a multiple of 128 that differs in every schedule.
  [[nodiscard]] std::uint32_t shared_shift() const { return shared_shift_; }
  ThreadState& state() { return threads_[static_cast<std::size_t>(fibers_.current())]; }

  // All threads of the block (group 0) or of warp group − 1 meet here with `operand`; the last to arrive calls
  // perform(operands).
  template <class Operand, class Perform>
  void meet(int group, const char* what, Operand& operand, Perform&& perform) {
    auto& meeting = meetings_[static_cast<std::size_t>(group)];
    const int member = group == 0 ? fibers_.current() : fibers_.current() % cuda::kWarp;
    if (meeting.arrived == 0) meeting.what = what;
    if (meeting.what != what && std::strcmp(meeting.what, what) != 0) {
      fail("thread " + std::to_string(fibers_.current()) + " calls " + what + " where others of its warp call " + meeting.what);
    }
    if (group > 0) operands_[static_cast<std::size_t>(group - 1) * cuda::kWarp + static_cast<std::size_t>(member)] = &operand;
    if (++meeting.arrived == meeting.expected) {
      perform(group > 0 ? reinterpret_cast<Operand**>(&operands_[static_cast<std::size_t>(group - 1) * cuda::kWarp]) : nullptr);
      meeting.arrived = 0;
      ++meeting.round;
      return;
    }
    auto& mine = state();
    mine.waits = &meeting;
    mine.round = meeting.round;
    mine.what = what;
    next();
    mine.waits = nullptr;
  }

  // Ends the launch with an error. Inside a fiber: never returns.
  [[noreturn]] void fail(const std::string& what) { throw EmulationError(text(what)); }

  std::array<std::int64_t, 3> block = {};
  EmulatedCounts counts;
  EmulatedProducts products;

 private:
  [[nodiscard]] std::string text(const std::string& what) const {
    return "kernel, block (" + std::to_string(block[0]) + ", " + std::to_string(block[1]) + ", " + std::to_string(block[2]) +
           "): " + what;
  }
  // Switches to another thread in the order of the schedule, or to the caller if all have ended.
  void next() {
    const std::size_t count = order_.size();
    const std::size_t from = run_ahead_ ? count - 1 : position_[static_cast<std::size_t>(fibers_.current())];
    for (std::size_t i = 1; i <= count; ++i) {
      const int thread = order_[from + i < count ? from + i : from + i - count];
      if (!threads_[static_cast<std::size_t>(thread)].can_run()) continue;
      if (thread != fibers_.current()) fibers_.switch_to(thread);
      return;
    }
    find_stuck();
    fibers_.switch_to(Fibers::kCaller);
  }
  void find_stuck() {
    if (std::ranges::all_of(threads_, &ThreadState::ended)) return;
    failure_ = std::make_exception_ptr(EmulationError(text("not all threads reach the same point: " + standing())));
  }
  // "threads 0-31 wait at sync(), threads 32-63 have ended"
  [[nodiscard]] std::string standing() const {
    std::string all;
    const auto of = [&](std::size_t t) {
      return threads_[t].ended ? std::string("have ended") : std::string("wait at ") + threads_[t].what;
    };
    for (std::size_t first = 0, end = 0; first < threads_.size(); first = end) {
      while (end < threads_.size() && of(end) == of(first)) ++end;
      all +=
          (all.empty() ? "threads " : ", threads ") + std::to_string(first) + "-" + std::to_string(end - 1) + " " + of(first);
    }
    return all;
  }

  cuda::LaunchShape shape_;
  SharedMemory shared_;
  std::uint32_t shared_shift_ = 0;
  Fibers fibers_;
  std::vector<int> order_;             // the schedule
  bool run_ahead_ = false;             // continue with the first thread that can run, not with the next
  std::vector<std::size_t> position_;  // of each thread in order_
  std::vector<ThreadState> threads_;
  std::vector<Meeting> meetings_;  // first the block's, then one per warp
  std::vector<void*> operands_ = std::vector<void*>(order_.size());
  std::exception_ptr failure_;
};

}  // namespace terrace::test
