// Shared by the writer and the reader of encoded conversations. encoded_conversations.h describes the format.
//
// Internal to examples/lm/chat. Threads: any.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include <terrace/offload/store/chunk_store.h>

namespace terrace::lm::encoded {

// Increase the last digits whenever the same conversations are encoded differently.
inline constexpr std::string_view kMagic = "terrace talk 01\n";
inline constexpr std::uint32_t kHighBit = std::uint32_t{1} << 31U;

// The checksum of a file, added part by part.
class Checksum {
 public:
  void add(std::uint64_t of_part) {
    const std::array<std::uint64_t, 2> both{sum_, of_part};
    sum_ = checksum_of(std::as_bytes(std::span(both)));
  }
  void add(std::string_view part) { add(checksum_of(std::as_bytes(std::span(part)))); }
  [[nodiscard]] std::uint64_t sum() const { return sum_; }

 private:
  std::uint64_t sum_ = 0;
};

}  // namespace terrace::lm::encoded
