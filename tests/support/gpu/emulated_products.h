// The asynchronous products of a block's warpgroups (core/cuda/lane.h), with only the guarantees of the PTX ISA: a warp
// computes its 16 rows of each product, and no warp waits for another.
//
// What it detects:
//   - shared memory that a product reads although the copying thread did not wait for its copy and then call fence_shared():
//     the product throws when it begins (plain stores are not tracked, so they are never visible to products);
//   - reads and writes of unfinished sums: they are NaN from the beginning of a product to its wait, and if they were written
//     in between, the wait throws;
//   - operands that change too early: a product may read late, so at its wait all that it reads, in shared memory and in
//     registers a, must be unchanged and visible; a copy that begins earlier throws;
//   - a product without fence_products() since the last wait, or with registers changed after that fence: it throws;
//   - wrong descriptors: they are decoded bit by bit, with the swizzle applied to addresses in the shared memory window;
//     addresses outside of it and reserved bits throw;
//   - warps of a warpgroup that begin different products, and products that no thread waits for: they throw.
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

struct ProductOperands {  // of one thread
  float* d;
  int n;  // d has 4 n numbers
  const std::uint32_t* a;
  cuda::MatrixDescriptor a_place, b;
  bool b_transposed, add;
};

struct SharedWindow {
  const std::byte* data;
  std::uint32_t address;  // address of `data`
};

class EmulatedProducts {
 public:
  void begin_block(int threads, std::size_t shared_bytes);
  [[nodiscard]] std::string trouble_at_end() const;  // empty: none

  // 16 bytes at an offset in shared memory.
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
  struct Matrix {  // a descriptor's matrix, and the values that were read
    cuda::MatrixDescriptor place;
    int first_row, rows;  // rows in the product's dimension other than k
    bool transposed;
    std::vector<std::uint16_t> values;  // [rows][16]
  };
  struct Product {
    std::vector<Matrix> read;
    std::array<const std::uint32_t*, kLanes> a = {};  // null: from shared memory
    std::array<Fragment, kLanes> a_values = {};
    const float* sums = nullptr;  // of thread 0; identifies the sums
  };
  struct Sums {
    int n = 0;
    std::size_t products = 0;  // unfinished ones
    std::array<float*, kLanes> d = {};
    std::vector<float> values;  // [thread][4 n]: the final values
  };
  struct Warp {
    bool fenced = false;
    std::vector<Product> begun;
    std::deque<std::vector<Product>> groups;
    std::map<const float*, Sums> under_way;                   // key: d of thread 0
    std::map<const void*, std::vector<std::byte>> registers;  // address → bytes at the last fence
    std::vector<std::string> log;
  };

  void read(Matrix& matrix, SharedWindow shared) const;
  void demand_fenced(Warp& warp, const void* registers, std::size_t bytes);
  void end(Warp& warp, const Product& product, SharedWindow shared) const;

  std::vector<bool> shown_;
  std::vector<Warp> warps_;
};

}  // namespace terrace::test
