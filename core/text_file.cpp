#include <terrace/core/text_file.h>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/units.h>

namespace terrace {
namespace {

constexpr std::size_t kMostBytes = 64 * kMiB;  // nobody wrote more; /dev/zero has no end

}  // namespace

std::string read_text_file(const std::filesystem::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw Error(describe_errno(errno));
  struct Guard {
    int descriptor;
    ~Guard() { ::close(descriptor); }
  } const guard{descriptor};
  std::string text;
  std::array<char, 64 * 1024> part{};
  while (true) {
    const auto got = ::read(descriptor, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(errno == EISDIR ? "it is a directory" : describe_errno(errno));
    if (got == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(got));
    if (text.size() > kMostBytes) throw Error(fmt::format("it is larger than {}", format_bytes(kMostBytes)));
  }
}

// RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U; };
    const auto lead = byte(i);
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (length == 0) return false;
    for (std::size_t k = 1; k < length; ++k)
      if ((byte(i + k) & 0xC0U) != 0x80U) return false;
    const auto second = byte(i + 1);
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
        (lead == 0xF4 && second > 0x8F))
      return false;
    i += length;
  }
  return true;
}

}  // namespace terrace
