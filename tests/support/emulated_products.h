// The asynchronous products of a block's warpgroups (core/cuda/lane.h), as the PTX ISA promises them and not better: a warp has
// its 16 rows of each, and no warp waits for another.
//
// What it makes visible:
//   - places in shared memory that a product reads without a fence_shared() by the thread whose copy came there, and without a
//     wait before that fence, throw when it begins (plain stores are not followed: nothing shows them to products);
//   - sums are NaN from the beginning of a product to its wait, and what was written there in between throws at the wait;
//   - a product reads late, too: at its wait all that it has read, in shared memory and in registers a, must still be there and
//     shown, so that a copy that begins before throws;
//   - a product without fence_products() since the last wait, or given registers that were changed behind it, throws;
//   - descriptors are decoded bit by bit, with the swizzle on addresses of the window of shared memory; what they name outside
//   of
//     it, and reserved bits, throw;
//   - warps of a warpgroup that begin other products than each other, and products that nobody waits for, throw.
//
// Threads: one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include <terrace/core/cuda/lane.h>
#include <terrace/core/cuda/matrix_descriptor.h>

namespace terrace::test {

struct ProductOperands {  // of a thread
  float* d;
  int n;  // times four numbers
  const std::uint32_t* a;
  cuda::MatrixDescriptor a_place, b;
  bool b_transposed, add;
};

struct SharedWindow {
  const std::byte* data;
  std::uint32_t address;  // of data
};

class EmulatedProducts {
 public:
  void begin_block(int threads, std::size_t shared_bytes);
  [[nodiscard]] std::string trouble_at_end() const;  // empty: none

  // 16 bytes, from an offset in shared memory.
  void hide(std::size_t offset) { shown_[offset / 16] = false; }
  void show(std::size_t offset) { shown_[offset / 16] = true; }

  void begin(int warp, ProductOperands** all, SharedWindow shared);
  void fence(int warp);
  void commit(int warp);
  void wait(int warp, std::size_t pending, SharedWindow shared);
  [[nodiscard]] bool is_under_way(int warp, const float* d) const;

 private:
  static constexpr std::size_t kLanes = cuda::kWarp;
  using Fragment = std::array<std::uint32_t, 4>;
  struct Matrix {  // as a descriptor names it, and what was read of it
    cuda::MatrixDescriptor place;
    int first_row, rows;  // the rows of the product's other dimension than k
    bool transposed;
    std::vector<std::uint16_t> values;  // [rows][16]
  };
  struct Product {
    std::vector<Matrix> read;
    std::array<const std::uint32_t*, kLanes> a = {};  // null: from shared memory
    std::array<Fragment, kLanes> a_values = {};
    const float* sums = nullptr;  // of thread 0: names the sums
  };
  struct Sums {
    int n = 0;
    std::size_t products = 0;  // under way
    std::array<float*, kLanes> d = {};
    std::vector<float> values;  // [thread][4 n]: what they will be
  };
  struct Warp {
    bool fenced = false;
    std::vector<Product> begun;
    std::deque<std::vector<Product>> groups;
    std::map<const float*, Sums> under_way;                   // by the d of thread 0
    std::map<const void*, std::vector<std::byte>> registers;  // known: address, bytes at the last fence
    std::vector<std::string> log;
  };

  void read(Matrix& matrix, SharedWindow shared) const;
  void demand_fenced(Warp& warp, const void* registers, std::size_t bytes);
  void end(Warp& warp, const Product& product, SharedWindow shared) const;

  std::vector<bool> shown_;
  std::vector<Warp> warps_;
};

}  // namespace terrace::test
