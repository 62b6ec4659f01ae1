// Equal blocks of page-aligned memory on huge pages, for transfers that are in flight.
//
// Owner:   the caller. Threads: take() and give_back() under the caller's lock. Errors: std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/core/units.h>
#include <terrace/offload/page_buffer.h>

namespace terrace {

class BlockRing {
 public:
  // Large enough for a drive's full rate; together they hold what a drive needs at once, and as much again for the other side.
  static constexpr std::uint64_t kBlockBytes = kMiB;
  static constexpr std::size_t kBlocks = 16;

  BlockRing() : bytes_(memory_.of(kBlocks * kBlockBytes)) {
    for (std::size_t b = kBlocks; b > 0; --b) free_.push_back(bytes_.data() + (b - 1) * kBlockBytes);
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  [[nodiscard]] bool any_free() const { return !free_.empty(); }
  [[nodiscard]] bool all_free() const { return free_.size() == kBlocks; }
  std::byte* take() {
    auto* const block = free_.back();
    free_.pop_back();
    return block;
  }
  void give_back(std::byte* block) { free_.push_back(block); }

 private:
  PageBuffer memory_;
  const std::span<std::byte> bytes_;
  std::vector<std::byte*> free_;
};

}  // namespace terrace
