#include <terrace/tests/support/gpu/emulated_lane.h>

#include <algorithm>

#include <terrace/tests/support/gpu/emulated_block.h>

namespace terrace::test {

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

EmulatedCounts emulate(const cuda::LaunchShape& shape, const std::function<void(EmulatedLane&)>& kernel,
                       std::uint64_t schedule) {
  constexpr std::int64_t kMaxX = (std::int64_t{1} << 31) - 1, kMaxYZ = 65535;
  if (shape.threads < cuda::kWarp || shape.threads > 1024 || shape.threads % cuda::kWarp != 0) {
    throw EmulationError("a block of " + std::to_string(shape.threads) + " threads: not 1 to 32 whole warps");
  }
  if (shape.blocks[0] > kMaxX || shape.blocks[1] > kMaxYZ || shape.blocks[2] > kMaxYZ) {
    throw EmulationError("more blocks than a grid has");
  }
  constexpr std::size_t kMaxShared = 227 * 1024;  // per block, compute capability 9.0
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
