#include <terrace/tests/support/emulated_lane.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <exception>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <terrace/tests/support/fibers.h>

namespace terrace::test {
namespace {

constexpr int kPoison = 0xff;  // fp32, bf16 and fp64 NaNs alike
constexpr std::size_t kSharedAlignment = 128;

// Threads that wait for each other: the last one that comes performs and lets the others go on.
struct Meeting {
  int expected = 0, arrived = 0;
  const char* what = nullptr;  // what those who wait here have called
  std::uint64_t round = 0;
};

struct Copy {
  std::byte* to;
  const std::byte* from;  // null: zeros
};

struct ThreadState {
  const Meeting* waits = nullptr;
  std::uint64_t round = 0;  // of the meeting that it waits for
  const char* what = nullptr;
  bool ended = false;
  std::deque<std::vector<Copy>> groups;  // committed, oldest first
  std::vector<Copy> begun;

  [[nodiscard]] bool can_run() const { return !ended && (waits == nullptr || waits->round != round); }
};

// The bytes of shared memory: exactly as many as the launch asks for, so that AddressSanitizer sees the end.
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

bool aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

}  // namespace

class EmulatedBlock {
 public:
  EmulatedBlock(const cuda::LaunchShape& shape, std::uint64_t schedule)
      : shape_(shape), shared_(shape.shared_bytes), fibers_(shape.threads), order_(static_cast<std::size_t>(shape.threads)) {
    std::iota(order_.begin(), order_.end(), 0);
    run_ahead_ = schedule % 2 == 1;
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
  }

  [[nodiscard]] const cuda::LaunchShape& shape() const { return shape_; }
  [[nodiscard]] const SharedMemory& shared() const { return shared_; }
  ThreadState& state() { return threads_[static_cast<std::size_t>(fibers_.current())]; }

  // All threads of the block (group 0) or of warp group − 1 come here with `operand`; the last one calls perform(operands).
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

 private:
  [[nodiscard]] std::string text(const std::string& what) const {
    return "kernel, block (" + std::to_string(block[0]) + ", " + std::to_string(block[1]) + ", " + std::to_string(block[2]) +
           "): " + what;
  }
  // Another thread, in the schedule's order; back to the caller when all have ended.
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
  Fibers fibers_;
  std::vector<int> order_;             // the schedule
  bool run_ahead_ = false;             // the first that can run, not the next
  std::vector<std::size_t> position_;  // in it
  std::vector<ThreadState> threads_;
  std::vector<Meeting> meetings_;  // of the block, then of each warp
  std::vector<void*> operands_ = std::vector<void*>(order_.size());
  std::exception_ptr failure_;
};

int EmulatedLane::threads() const { return block_.shape().threads; }
int EmulatedLane::block_x() const { return static_cast<int>(block_.block[0]); }
int EmulatedLane::block_y() const { return static_cast<int>(block_.block[1]); }
int EmulatedLane::block_z() const { return static_cast<int>(block_.block[2]); }
int EmulatedLane::blocks_x() const { return static_cast<int>(block_.shape().blocks[0]); }
int EmulatedLane::blocks_y() const { return static_cast<int>(block_.shape().blocks[1]); }
std::byte* EmulatedLane::shared() const { return block_.shared().data(); }

void EmulatedLane::sync() {
  int nothing = 0;
  block_.meet(0, "sync()", nothing, [&](int**) { ++block_.counts.barriers; });
}
void EmulatedLane::sync_warp() {
  int nothing = 0;
  block_.meet(1 + warp(), "sync_warp()", nothing, [](int**) {});
}

std::uint64_t EmulatedLane::shuffle_bits(std::uint64_t bits, int from) {
  struct Operand {
    std::uint64_t bits, result;
    int from;
  } operand{bits, 0, from};
  if (from < 0 || from >= cuda::kWarp) block_.fail("a shuffle from thread " + std::to_string(from) + " of a warp");
  block_.meet(1 + warp(), "a shuffle", operand, [](Operand** all) {
    for (int i = 0; i < cuda::kWarp; ++i) all[i]->result = all[all[i]->from]->bits;
  });
  return operand.result;
}

bool EmulatedLane::any(bool value) {
  block_.meet(1 + warp(), "any()", value, [](bool** all) {
    const bool result = std::any_of(all, all + cuda::kWarp, [](const bool* one) { return *one; });
    for (int i = 0; i < cuda::kWarp; ++i) *all[i] = result;
  });
  return value;
}

namespace {

struct LoadOperand {
  const std::uint16_t* row;
  std::uint32_t* r;
};

std::uint32_t pair(std::uint16_t low, std::uint16_t high) { return static_cast<std::uint32_t>(high) << 16 | low; }

// Shared memory has 32 banks of 4 bytes: rows of 16 bytes that lie at the same place of 128 bytes come one after another.
std::int64_t further_passes(LoadOperand** all) {
  std::int64_t passes = 0;
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::array<std::vector<const void*>, 8> rows;
    for (int row = 0; row < 8; ++row) {
      const void* const at = all[matrix * 8 + row]->row;
      auto& bank = rows[reinterpret_cast<std::uintptr_t>(at) / 16 % 8];
      if (std::ranges::find(bank, at) == bank.end()) bank.push_back(at);
    }
    passes += static_cast<std::int64_t>(std::ranges::max_element(rows, {}, &std::vector<const void*>::size)->size()) - 1;
  }
  return passes;
}

}  // namespace

void EmulatedLane::load_matrices(std::uint32_t (&r)[4], const void* row) {
  if (!block_.shared().holds(row, 16) || !aligned(row))
    block_.fail("load_matrices() of a row that is not in shared memory, or not aligned to 16");
  LoadOperand operand{static_cast<const std::uint16_t*>(row), r};
  block_.meet(1 + warp(), "load_matrices()", operand, [&](LoadOperand** all) {
    ++block_.counts.matrix_loads;
    block_.counts.bank_conflicts += further_passes(all);
    for (int t = 0; t < cuda::kWarp; ++t) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        const auto* const at = all[matrix * 8 + t / 4]->row;
        all[t]->r[matrix] = pair(at[t % 4 * 2], at[t % 4 * 2 + 1]);
      }
    }
  });
}
void EmulatedLane::load_matrices_transposed(std::uint32_t (&r)[4], const void* row) {
  if (!block_.shared().holds(row, 16) || !aligned(row))
    block_.fail("load_matrices_transposed() of a row that is not in shared memory, or not aligned to 16");
  LoadOperand operand{static_cast<const std::uint16_t*>(row), r};
  block_.meet(1 + warp(), "load_matrices_transposed()", operand, [&](LoadOperand** all) {
    ++block_.counts.matrix_loads;
    block_.counts.bank_conflicts += further_passes(all);
    for (int t = 0; t < cuda::kWarp; ++t) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        const auto at = [&](int i) { return all[matrix * 8 + i]->row[t / 4]; };
        all[t]->r[matrix] = pair(at(t % 4 * 2), at(t % 4 * 2 + 1));
      }
    }
  });
}

void EmulatedLane::multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  struct Operand {
    float* d;
    std::uint32_t a[4], b[2];
  } operand{d, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  block_.meet(1 + warp(), "multiply()", operand, [&](Operand** all) {
    ++block_.counts.matrix_products;
    // PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
    double left[16][16], right[16][8],
        sums[16][8] = {};  // the order and the rounding inside are the GPU's own: rely on neither
    const auto number = [](std::uint32_t r, int half) { return std::bit_cast<float>(half == 0 ? r << 16 : r & 0xffff0000U); };
    for (int t = 0; t < cuda::kWarp; ++t) {
      const int group = t / 4, in_group = t % 4;
      for (int i = 0; i < 8; ++i) {
        const int row = group + (i % 4 < 2 ? 0 : 8), column = in_group * 2 + i % 2 + (i < 4 ? 0 : 8);
        left[row][column] = number(all[t]->a[i / 2], i % 2);
      }
      for (int i = 0; i < 4; ++i) right[in_group * 2 + i % 2 + (i < 2 ? 0 : 8)][group] = number(all[t]->b[i / 2], i % 2);
    }
    for (int row = 0; row < 16; ++row) {
      for (int k = 0; k < 16; ++k) {
        for (int column = 0; column < 8; ++column) sums[row][column] += left[row][k] * right[k][column];
      }
    }
    for (int t = 0; t < cuda::kWarp; ++t) {
      for (int i = 0; i < 4; ++i) {
        float& sum = all[t]->d[i];
        sum = static_cast<float>(sum + sums[t / 4 + (i < 2 ? 0 : 8)][t % 4 * 2 + i % 2]);
      }
    }
  });
}

void EmulatedLane::copy_async(void* to_shared, const void* from, bool valid) {
  if (!block_.shared().holds(to_shared, 16) || !aligned(to_shared))
    block_.fail("copy_async() to what is not in shared memory, or not aligned to 16");
  if (valid && !aligned(from)) block_.fail("copy_async() from an address that is not aligned to 16");
  std::memset(to_shared, kPoison, 16);
  block_.state().begun.push_back({static_cast<std::byte*>(to_shared), valid ? static_cast<const std::byte*>(from) : nullptr});
  ++block_.counts.asynchronous_copies;
}
void EmulatedLane::commit_copies() {
  auto& state = block_.state();
  state.groups.push_back(std::move(state.begun));
  state.begun.clear();
}
void EmulatedLane::wait_copies_until(int pending) {
  auto& groups = block_.state().groups;
  while (groups.size() > static_cast<std::size_t>(pending)) {
    for (const auto& copy : groups.front()) {
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, 16);
      } else {
        std::memcpy(copy.to, copy.from, 16);
      }
    }
    groups.pop_front();
  }
}

EmulatedCounts emulate(const cuda::LaunchShape& shape, const std::function<void(EmulatedLane&)>& kernel,
                       std::uint64_t schedule) {
  constexpr std::int64_t kMaxX = (std::int64_t{1} << 31) - 1, kMaxYZ = 65535;
  if (shape.threads < cuda::kWarp || shape.threads > 1024 || shape.threads % cuda::kWarp != 0) {
    throw EmulationError("a block of " + std::to_string(shape.threads) + " threads: not 1 to 32 whole warps");
  }
  if (shape.blocks[0] > kMaxX || shape.blocks[1] > kMaxYZ || shape.blocks[2] > kMaxYZ) {
    throw EmulationError("more blocks than a grid has");
  }
  constexpr std::size_t kMaxShared = 227 * 1024;  // of a block, compute capability 9.0
  if (shape.shared_bytes > kMaxShared) throw EmulationError("more shared memory than a block has");
  EmulatedBlock block(shape, schedule);
  for (std::int64_t z = 0; z < shape.blocks[2]; ++z) {
    for (std::int64_t y = 0; y < shape.blocks[1]; ++y) {
      for (std::int64_t x = 0; x < shape.blocks[0]; ++x) block.run({x, y, z}, kernel);
    }
  }
  return block.counts;
}

}  // namespace terrace::test
