// Sizes in bytes: constants, rounding, and the text forms that flags and reports use.
//
// Threads: any. Errors: parse_bytes throws Error(ErrorKind::refused) that names the text and the accepted forms.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

inline constexpr std::uint64_t kKiB = 1ULL << 10;
inline constexpr std::uint64_t kMiB = 1ULL << 20;
inline constexpr std::uint64_t kGiB = 1ULL << 30;
inline constexpr std::uint64_t kPageBytes = 4096;  // the unit of placement and of direct I/O
inline constexpr std::uint64_t kHugePageBytes = 2 * kMiB;
inline constexpr std::uint64_t kUnlimited = ~0ULL;  // a budget without a cap

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr std::uint64_t ceil_div(std::uint64_t value, std::uint64_t by) { return (value + by - 1) / by; }

// "512MiB", "16GB" (decimal), "1.5GiB", "4096", "unlimited".
std::uint64_t parse_bytes(std::string_view text);
// "1.50 GiB", "unlimited"; three significant digits, binary units.
std::string format_bytes(std::uint64_t bytes);

}  // namespace terrace
