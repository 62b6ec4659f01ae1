// The content of the benchmark's file. Its bytes are computed from the page's number, a generation and a seed, so that a
// flipped bit, a page from another place and a page from an earlier run are all found.
//
// Some pages begin with a stamp of 16 bytes: one every 64 KiB, and at least one per block. Everything else is random bytes that
// repeat after kPatternBytes, a longer distance than compressing disks and file systems look back. A buffer is filled with
// random bytes once; after that, writing a block costs only its stamps. A stamp on every page would be safer, but would take
// more CPU time than the write itself: 9 ms per GiB instead of 0.8.
//
// Threads: any. Errors: check() and sample() return the error as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/core/base/units.h>

namespace terrace::bench {

inline constexpr std::uint64_t kPatternBytes = 256 * kKiB;
inline constexpr std::uint64_t kPatternPages = kPatternBytes / kPageBytes;

// How many pages lie between two stamps, for blocks of this size: a power of two that divides the pages of a block.
std::uint64_t stamp_pages(std::uint64_t block_bytes);

class Pattern {
 public:
  explicit Pattern(std::uint64_t seed, std::uint64_t pages_a_stamp = 1);

  // Writes the random bytes for pages from `first_page` on; stamp() adds the stamps.
  void fill(std::span<std::byte> buffer, std::uint64_t first_page) const;
  // Stamps the pages that have a stamp; `first_page` must be one of them.
  void stamp(std::span<std::byte> buffer, std::uint64_t first_page, std::uint32_t generation) const;

  // Checks every byte of the pages; returns nothing if all are as written, else the error.
  [[nodiscard]] std::optional<std::string> check(std::span<const std::byte> buffer, std::uint64_t first_page,
                                                 std::span<const std::uint32_t> generations) const;
  // Checks the stamp of one page that has a stamp.
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
