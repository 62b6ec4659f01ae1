// The emulated lane with one operation left out, for tests that the warpgroups' kernels need every operation.
#pragma once

#include <cstddef>
#include <cstdint>

#include <terrace/core/cuda/matrix_descriptor.h>
#include <terrace/tests/support/gpu/emulated_lane.h>

namespace terrace::test {

// The operation that is left out or replaced.
enum class Sabotage {
  none,
  no_wait_for_copies,
  one_group_of_copies_less,
  no_fence_for_memory,
  no_sync,
  no_fence_of_registers,
  no_commit,
  no_wait_for_products,
  no_wait_for_the_scores,
  no_wait_for_the_sums,
  base_not_aligned,
};

// A lane for kernels with this sabotage.
template <Sabotage kSabotage>
struct SabotagedLane {
  EmulatedLane& lane;

  [[nodiscard]] int thread() const { return lane.thread(); }
  [[nodiscard]] int warp() const { return lane.warp(); }
  [[nodiscard]] int warp_lane() const { return lane.warp_lane(); }
  [[nodiscard]] int block_x() const { return lane.block_x(); }
  [[nodiscard]] int block_y() const { return lane.block_y(); }
  [[nodiscard]] int block_z() const { return lane.block_z(); }
  [[nodiscard]] int blocks_y() const { return lane.blocks_y(); }
  [[nodiscard]] std::byte* shared() const { return lane.shared(); }
  [[nodiscard]] std::uint32_t shared_address(const void* p) const {
    return lane.shared_address(p) + (kSabotage == Sabotage::base_not_aligned && p == lane.shared() ? 128U : 0U);
  }
  float shuffle_xor(float value, int mask) { return lane.shuffle_xor(value, mask); }
  void sync_warp() { lane.sync_warp(); }
  void sync() {
    if (kSabotage != Sabotage::no_sync) lane.sync();
  }
  void copy_async(void* to, const void* from, bool valid) { lane.copy_async(to, from, valid); }
  void commit_copies() { lane.commit_copies(); }
  template <int n>
  void wait_copies(cuda::Pending<n> pending) {
    if (kSabotage == Sabotage::no_wait_for_copies) return;
    if (kSabotage == Sabotage::one_group_of_copies_less) return lane.wait_copies(cuda::Pending<n + 1>{});
    lane.wait_copies(pending);
  }
  void fence_shared() {
    if (kSabotage != Sabotage::no_fence_for_memory) lane.fence_shared();
  }
  template <int n>
  void multiply_async(float (&d)[n][4], cuda::MatrixDescriptor a, cuda::MatrixDescriptor b, bool add) {
    lane.multiply_async(d, a, b, add);
  }
  template <int n>
  void multiply_async_transposed(float (&d)[n][4], const std::uint32_t (&a)[4], cuda::MatrixDescriptor b, bool add) {
    lane.multiply_async_transposed(d, a, b, add);
  }
  void fence_products() {
    if (kSabotage != Sabotage::no_fence_of_registers) lane.fence_products();
  }
  void commit_products() {
    if (kSabotage != Sabotage::no_commit) lane.commit_products();
  }
  template <int n, class... Sums>
  void wait_products(cuda::Pending<n> pending, Sums&...) {
    if (kSabotage == Sabotage::no_wait_for_products) return;
    if (kSabotage == Sabotage::no_wait_for_the_scores && n == 1) return;
    if (kSabotage == Sabotage::no_wait_for_the_sums && n == 0) return lane.wait_products(cuda::Pending<1>{});
    lane.wait_products(pending);
  }
};

}  // namespace terrace::test
