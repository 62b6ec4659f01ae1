#include <terrace/core/base/units.h>

#include <array>
#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace {
namespace {

__extension__ using uint128 = unsigned __int128;

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<Unit, 10> kUnits{{
    {"", 1},
    {"b", 1},
    {"kb", 1'000},
    {"mb", 1'000'000},
    {"gb", 1'000'000'000},
    {"tb", 1'000'000'000'000},
    {"kib", kKiB},
    {"mib", kMiB},
    {"gib", kGiB},
    {"tib", kGiB* kKiB},
}};

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  throw Error(
      fmt::format("\"{}\" is not a size: {}; accepted are 4096, 512MiB, 1.5GiB, 16GB (decimal) and unlimited", text, why),
      ErrorKind::refused);
}

std::string_view take_digits(std::string_view& rest) {
  std::size_t n = 0;
  while (n < rest.size() && rest[n] >= '0' && rest[n] <= '9') ++n;
  const auto digits = rest.substr(0, n);
  rest.remove_prefix(n);
  return digits;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (auto& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

// Integer arithmetic throughout: a double would lose the last bytes of a large size.
std::uint64_t parse_bytes(std::string_view text) {
  if (lower(text) == "unlimited") return kUnlimited;
  auto rest = text;
  const auto whole_digits = take_digits(rest);
  if (whole_digits.empty()) refuse(text, "it does not begin with a digit");
  std::string_view fraction_digits;
  if (!rest.empty() && rest.front() == '.') {
    rest.remove_prefix(1);
    fraction_digits = take_digits(rest);
    if (fraction_digits.empty()) refuse(text, "no digit follows the point");
    if (fraction_digits.size() > 15) refuse(text, "more than 15 digits follow the point");
  }
  if (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);  // format_bytes writes one

  const auto unit_name = lower(rest);
  const Unit* unit = nullptr;
  for (const auto& u : kUnits) {
    if (u.name == unit_name) unit = &u;
  }
  if (!unit) refuse(text, fmt::format("the unit \"{}\" is unknown", rest));
  if (!fraction_digits.empty() && unit->bytes == 1) refuse(text, "a byte has no fraction");

  std::uint64_t whole = 0;
  if (std::from_chars(whole_digits.data(), whole_digits.data() + whole_digits.size(), whole).ec != std::errc{}) {
    refuse(text, "it is too large");
  }
  uint128 fraction = 0, scale = 1;
  for (const char c : fraction_digits) {
    fraction = fraction * 10 + static_cast<unsigned>(c - '0');
    scale *= 10;
  }
  const uint128 bytes = static_cast<uint128>(whole) * unit->bytes + fraction * unit->bytes / scale;
  if (bytes >= kUnlimited) refuse(text, "it is too large");
  return static_cast<std::uint64_t>(bytes);
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes == kUnlimited) return "unlimited";
  if (bytes < kKiB) return fmt::format("{} B", bytes);
  constexpr std::array<std::string_view, 6> names{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t i = 0;
  for (; value >= 1023.5 && i + 1 < names.size(); ++i) value /= 1024;  // 1023.5 would be printed as 1024
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, names[i]);
}

}  // namespace terrace
