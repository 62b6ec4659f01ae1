// The content of the benchmark's file: bytes that follow from the page's number, a generation and a seed, so that a flipped
// bit, a page from another place and a page of an earlier run are all found.
//
// Some pages begin with a stamp of 16 bytes, every 64 KiB and at least one a block; everything else is random bytes that repeat
// after kPatternBytes, further than the windows of compressing disks and file systems reach. A buffer is filled with random
// bytes once; writing a block then costs its stamps. One a page would be surer, and costs more CPU time than writing: 9 ms a
// GiB against 0.8.
//
// Threads: any. Errors: check() and sample() return the error as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/core/units.h>

namespace terrace::bench {

inline constexpr std::uint64_t kPatternBytes = 256 * kKiB;
inline constexpr std::uint64_t kPatternPages = kPatternBytes / kPageBytes;

// The pages from one stamp to the next, for blocks of this size: a power of two that divides the block's pages.
std::uint64_t stamp_pages(std::uint64_t block_bytes);

class Pattern {
 public:
  explicit Pattern(std::uint64_t seed, std::uint64_t pages_a_stamp = 1);

  // Random bytes for pages from `first_page` on; stamps are left for stamp().
  void fill(std::span<std::byte> buffer, std::uint64_t first_page) const;
  // On the pages that bear one; `first_page` does.
  void stamp(std::span<std::byte> buffer, std::uint64_t first_page, std::uint32_t generation) const;

  // Checks every byte of the pages; returns nothing if all are as written.
  [[nodiscard]] std::optional<std::string> check(std::span<const std::byte> buffer, std::uint64_t first_page,
                                                 std::span<const std::uint32_t> generations) const;
  // The stamp of one page that bears one.
  [[nodiscard]] std::optional<std::string> check_stamp(const std::byte* page, std::uint64_t number,
                                                       std::uint32_t generation) const;
  [[nodiscard]] std::uint64_t pages_a_stamp() const { return pages_a_stamp_; }

 private:
  struct Stamp {
    std::uint64_t page, generation;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };
  [[nodiscard]] Stamp stamp_of(std::uint64_t page, std::uint32_t generation) const;

  std::uint64_t seed_, pages_a_stamp_;
  std::vector<std::byte> base_;  // kPatternBytes
};

}  // namespace terrace::bench
