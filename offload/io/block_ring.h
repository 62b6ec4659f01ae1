// Equal blocks of page-aligned memory on huge pages, for transfers that are in flight.
//
// Owner:   the caller. Threads: take() and give_back() under the caller's lock. Errors: std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/offload/io/page_buffer.h>

namespace terrace::io {

class BlockRing {
 public:
  BlockRing(std::size_t blocks, std::uint64_t block_bytes) : blocks_(blocks), bytes_(memory_.of(blocks * block_bytes)) {
    for (std::size_t b = blocks; b > 0; --b) free_.push_back(bytes_.data() + (b - 1) * block_bytes);
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  [[nodiscard]] bool any_free() const { return !free_.empty(); }
  [[nodiscard]] bool all_free() const { return free_.size() == blocks_; }
  std::byte* take() {
    auto* const block = free_.back();
    free_.pop_back();
    return block;
  }
  void give_back(std::byte* block) { free_.push_back(block); }

 private:
  const std::size_t blocks_;
  PageBuffer memory_;
  const std::span<std::byte> bytes_;
  std::vector<std::byte*> free_;
};

}  // namespace terrace::io
