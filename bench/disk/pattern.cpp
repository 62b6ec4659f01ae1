#include <terrace/bench/disk/pattern.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <terrace/core/math/philox.h>

namespace terrace::bench {
namespace {

constexpr std::uint64_t kMostStampPages = 64 * kKiB / kPageBytes;

}  // namespace

std::uint64_t stamp_pages(std::uint64_t block_bytes) {
  std::uint64_t pages = 1;
  while (pages < kMostStampPages && block_bytes % (2 * pages * kPageBytes) == 0) pages *= 2;
  return pages;
}

Pattern::Pattern(std::uint64_t seed, std::uint64_t pages_a_stamp)
    : seed_(seed), pages_a_stamp_(pages_a_stamp), base_(kPatternBytes) {
  for (std::uint64_t at = 0; at < kPatternBytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = math::random_below(seed, math::stream_of("bench pattern"), at, ~0ULL);
    std::memcpy(base_.data() + at, &word, sizeof word);
  }
}

Pattern::Stamp Pattern::stamp_of(std::uint64_t page, std::uint32_t generation) const {
  return {page ^ seed_, generation ^ (page * 0x9E3779B97F4A7C15ULL)};
}

void Pattern::fill(std::span<std::byte> buffer, std::uint64_t first_page) const {
  for (std::uint64_t at = 0; at < buffer.size(); at += kPageBytes) {
    const auto page = (first_page + at / kPageBytes) % kPatternPages;
    std::memcpy(buffer.data() + at, base_.data() + page * kPageBytes, kPageBytes);
  }
}

void Pattern::stamp(std::span<std::byte> buffer, std::uint64_t first_page, std::uint32_t generation) const {
  for (std::uint64_t at = 0; at < buffer.size(); at += pages_a_stamp_ * kPageBytes) {
    const auto stamp = stamp_of(first_page + at / kPageBytes, generation);
    std::memcpy(buffer.data() + at, &stamp, sizeof stamp);
  }
}

std::optional<std::string> Pattern::check(std::span<const std::byte> buffer, std::uint64_t first_page,
                                          std::span<const std::uint32_t> generations) const {
  for (std::uint64_t i = 0; i * kPageBytes < buffer.size(); ++i) {
    const auto* const page = buffer.data() + i * kPageBytes;
    std::uint64_t from = 0;  // where the random bytes of the page begin
    if ((first_page + i) % pages_a_stamp_ == 0) {
      if (auto wrong = check_stamp(page, first_page + i, generations[i])) return wrong;
      from = sizeof(Stamp);
    }
    const auto* const expected = base_.data() + (first_page + i) % kPatternPages * kPageBytes;
    if (std::memcmp(page + from, expected + from, kPageBytes - from) == 0) continue;
    const auto differs = std::mismatch(page + from, page + kPageBytes, expected + from).first;
    const auto byte = static_cast<std::uint64_t>(differs - page);
    return fmt::format("byte {} of page {} is {:#04x}, where {:#04x} was written", byte, first_page + i,
                       std::to_integer<unsigned>(*differs), std::to_integer<unsigned>(expected[byte]));
  }
  return std::nullopt;
}

std::optional<std::string> Pattern::check_stamp(const std::byte* page, std::uint64_t number, std::uint32_t generation) const {
  Stamp found{};
  std::memcpy(&found, page, sizeof found);
  if (found == stamp_of(number, generation)) return std::nullopt;
  const auto found_page = found.page ^ seed_;
  const auto found_generation = found.generation ^ (found_page * 0x9E3779B97F4A7C15ULL);
  if (found_generation <= UINT32_MAX && found == stamp_of(found_page, static_cast<std::uint32_t>(found_generation))) {
    return fmt::format("page {} holds page {} of generation {}, where generation {} was written", number, found_page,
                       found_generation, generation);
  }
  return fmt::format("page {} does not begin with what was written", number);
}

}  // namespace terrace::bench
