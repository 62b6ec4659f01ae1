// A Lane (core/cuda/lane.h) on the host: runs a kernel's own source without a GPU, one block after another. The threads of a
// block are fibers; each runs until it waits for others.
//
// What it detects:
//   - reads of uninitialised shared memory: it holds NaN bytes before each block, and ends at the launch's last byte
//     (AddressSanitizer sees accesses beyond);
//   - sync(), or an operation of a warp, that not all threads reach, or that threads reach with different operations: it throws
//     EmulationError and does not hang;
//   - reads before the wait of an asynchronous copy: its destination holds NaN bytes from the copy's beginning to the wait;
//   - misaligned or foreign addresses in load_matrices() and copy_async(): they throw;
//   - misuse of the asynchronous products of a warpgroup: see emulated_products.h;
//   - a missing sync(): `schedule` permutes the order in which threads run, and results must not depend on it.
// It also counts operations that cost time on a GPU: see EmulatedCounts.
//
// Threads: one launch on one thread; launches on several threads are independent.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>

#include <terrace/core/cuda/lane.h>
#include <terrace/core/cuda/matrix_descriptor.h>

namespace terrace::test {

struct EmulationError : std::logic_error {
  using std::logic_error::logic_error;
};

struct EmulatedCounts {
  std::int64_t matrix_loads = 0;         // per warp, four matrices each
  std::int64_t bank_conflicts = 0;       // additional passes of those loads, because rows of a matrix share banks
  std::int64_t matrix_products = 0;      // per warp, 16 × 8 × 16
  std::int64_t products_async = 0;       // per warp: its 16 rows of a warpgroup's 64
  std::int64_t asynchronous_copies = 0;  // of 16 bytes each
  std::int64_t barriers = 0;             // sync() of a block
  std::size_t most_shared_bytes = 0;     // of one launch
};

class EmulatedBlock;

class EmulatedLane {
 public:
  EmulatedLane(EmulatedBlock& block, int thread) : block_(block), thread_(thread) {}
  EmulatedLane(const EmulatedLane&) = delete;
  EmulatedLane& operator=(const EmulatedLane&) = delete;

  [[nodiscard]] int thread() const { return thread_; }
  [[nodiscard]] int threads() const;
  [[nodiscard]] int warp() const { return thread_ / cuda::kWarp; }
  [[nodiscard]] int warp_lane() const { return thread_ % cuda::kWarp; }
  [[nodiscard]] int block_x() const;
  [[nodiscard]] int block_y() const;
  [[nodiscard]] int block_z() const;
  [[nodiscard]] int blocks_x() const;
  [[nodiscard]] int blocks_y() const;

  [[nodiscard]] std::byte* shared() const;

  void sync();
  void sync_warp();
  template <class T>
  T shuffle_xor(T value, int mask) {
    return shuffled(value, warp_lane() ^ mask);
  }
  template <class T>
  T shuffle(T value, int from) {
    return shuffled(value, from);
  }

  bool any(bool value);

  void load_matrices(std::uint32_t (&r)[4], const void* row);
  void load_matrices_transposed(std::uint32_t (&r)[4], const void* row);
  void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);

  void copy_async(void* to_shared, const void* from, bool valid);
  void commit_copies();
  template <int n>
  void wait_copies(cuda::Pending<n>) {
    wait_copies_until(n);
  }

  template <int n>
  void multiply_async(float (&d)[n][4], cuda::MatrixDescriptor a, cuda::MatrixDescriptor b, bool add) {
    begin_product(&d[0][0], n, nullptr, a, b, false, add);
  }
  template <int n>
  void multiply_async_transposed(float (&d)[n][4], const std::uint32_t (&a)[4], cuda::MatrixDescriptor b, bool add) {
    begin_product(&d[0][0], n, a, {}, b, true, add);
  }
  void fence_products();
  void commit_products();
  template <int n, class... Sums>
  void wait_products(cuda::Pending<n>, Sums&... ended) {
    wait_products_until(n);
    (expect_ended(&ended[0][0]), ...);
  }
  void fence_shared();
  [[nodiscard]] std::uint32_t shared_address(const void* p) const;

 private:
  template <class T>
  T shuffled(T value, int from) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = shuffle_bits(bits, from);
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  std::uint64_t shuffle_bits(std::uint64_t bits, int from);
  void wait_copies_until(int pending);
  // a: registers, or null, then a_place is used. d: 4 n numbers.
  void begin_product(float* d, int n, const std::uint32_t* a, cuda::MatrixDescriptor a_place, cuda::MatrixDescriptor b,
                     bool b_transposed, bool add);
  void wait_products_until(int pending);
  void expect_ended(const float* d);

  EmulatedBlock& block_;
  int thread_;
};

// Schedule 0 runs threads in ascending order, 1 in descending order, others in a random order with that seed. Even schedules
// let the threads take turns; odd ones always continue the first thread that can run, so that a warp runs ahead of the others
// as far as possible.
EmulatedCounts emulate(const cuda::LaunchShape& shape, const std::function<void(EmulatedLane&)>& kernel,
                       std::uint64_t schedule = 0);

template <class Kernel, class Args>
EmulatedCounts emulate(const cuda::LaunchShape& shape, const Args& args, std::uint64_t schedule = 0) {
  return emulate(shape, std::function<void(EmulatedLane&)>([&](EmulatedLane& lane) { Kernel{}(lane, args); }), schedule);
}

// Takes the place of a launcher in launch code. `counts` sums over all its launches.
struct EmulatedLauncher {
  template <class Kernel, class Args>
  void run(const cuda::LaunchShape& shape, const Args& args) const {
    const auto one = emulate<Kernel>(shape, args, schedule);
    counts->most_shared_bytes = std::max(counts->most_shared_bytes, shape.shared_bytes);
    counts->matrix_loads += one.matrix_loads;
    counts->bank_conflicts += one.bank_conflicts;
    counts->matrix_products += one.matrix_products;
    counts->products_async += one.products_async;
    counts->asynchronous_copies += one.asynchronous_copies;
    counts->barriers += one.barriers;
  }
  [[nodiscard]] std::size_t shared_bytes() const { return shared_bytes_of_gpu; }

  EmulatedCounts* counts = nullptr;
  std::uint64_t schedule = 0;
  std::size_t shared_bytes_of_gpu = 227 * 1024;  // the most that a block may have
};

}  // namespace terrace::test
