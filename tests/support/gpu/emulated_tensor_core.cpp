// The emulated lane's tensor core operations and asynchronous copies.
#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include <terrace/tests/support/gpu/emulated_block.h>

namespace terrace::test {
namespace {

bool aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

struct LoadOperand {
  const std::uint16_t* row;
  std::uint32_t* r;
};

std::size_t offset_of(const EmulatedBlock& block, const void* p) {
  return static_cast<std::size_t>(static_cast<const std::byte*>(p) - block.shared().data());
}

std::uint32_t pair(std::uint16_t low, std::uint16_t high) { return static_cast<std::uint32_t>(high) << 16 | low; }

// Shared memory has 32 banks of 4 bytes, so rows of 16 bytes with the same offset modulo 128 are read one after another.
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
        sums[16][8] = {};  // a GPU has its own order and rounding here, so tests must not rely on them
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
  block_.products.hide(offset_of(block_, to_shared));
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
      block_.state().arrived.push_back(copy.to);
    }
    groups.pop_front();
  }
}

// The window of shared memory begins with the system's part; a kernel's own part may begin at any multiple of 128.
std::uint32_t EmulatedLane::shared_address(const void* p) const {
  constexpr std::uint32_t kReserved = 1024;
  return kReserved + block_.shared_shift() + static_cast<std::uint32_t>(offset_of(block_, p));
}

void EmulatedLane::fence_shared() {
  auto& arrived = block_.state().arrived;
  for (const auto* const place : arrived) block_.products.show(offset_of(block_, place));
  arrived.clear();
}

void EmulatedLane::begin_product(float* d, int n, const std::uint32_t* a, cuda::MatrixDescriptor a_place,
                                 cuda::MatrixDescriptor b, bool b_transposed, bool add) {
  ProductOperands operands{d, n, a, a_place, b, b_transposed, add};
  block_.meet(1 + warp(), "a product of a warpgroup", operands, [&](ProductOperands** all) {
    ++block_.counts.products_async;
    block_.products.begin(warp(), all, {block_.shared().data(), shared_address(block_.shared().data())});
  });
}
void EmulatedLane::fence_products() {
  int nothing = 0;
  block_.meet(1 + warp(), "fence_products()", nothing, [&](int**) { block_.products.fence(warp()); });
}
void EmulatedLane::commit_products() {
  int nothing = 0;
  block_.meet(1 + warp(), "commit_products()", nothing, [&](int**) { block_.products.commit(warp()); });
}
void EmulatedLane::wait_products_until(int pending) {
  block_.meet(1 + warp(), "wait_products()", pending, [&](int** all) {
    block_.products.wait(warp(), static_cast<std::size_t>(*all[0]),
                         {block_.shared().data(), shared_address(block_.shared().data())});
  });
}
void EmulatedLane::expect_ended(const float* d) {
  if (block_.products.is_under_way(warp(), d)) block_.fail("wait_products() names sums that are not waited for yet");
}

}  // namespace terrace::test
