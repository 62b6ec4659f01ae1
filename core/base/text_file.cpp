#include <terrace/core/base/text_file.h>

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <sstream>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Calls `take` with what was read until it returns false or the file ends.
template <class Take>
void read_parts(const fs::path& file, const files::FileHandle& in, const Take& take) {
  if (!in) throw errno_error(errno, file.string());
  std::array<char, 64 * 1024> part{};
  while (true) {
    const auto got = ::read(in.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw errno_error(errno, file.string());
    if (got == 0 || !take(std::string_view(part.data(), static_cast<std::size_t>(got)))) return;
  }
}

}  // namespace

std::string read_text_file(const fs::path& file, std::uint64_t most_bytes) {
  std::string text;
  read_parts(file, files::open_regular(file, O_RDONLY, AT_FDCWD, 0, files::UnnamedPipe::accepted), [&](std::string_view part) {
    text += part;
    if (text.size() > most_bytes)
      throw Error(fmt::format("it is larger than {}", format_bytes(most_bytes)), ErrorKind::failed, {.path = file.string()});
    return true;
  });
  return text;
}

void read_lines(const fs::path& file, const std::function<bool(const std::string& line, bool complete)>& take) {
  std::string line;
  bool wanted = true;
  read_parts(file, files::open_regular(file, O_RDONLY), [&](std::string_view part) {
    while (wanted && !part.empty()) {
      const auto end = part.find('\n');
      line += part.substr(0, end);
      if (line.size() > kMostTextBytes)
        throw Error(fmt::format("a line is longer than {}", format_bytes(kMostTextBytes)), ErrorKind::failed,
                    {.path = file.string()});
      if (end == std::string_view::npos) break;
      wanted = take(line, true);
      line.clear();
      part.remove_prefix(end + 1);
    }
    return wanted;
  });
  if (wanted && !line.empty()) take(line, false);
}

void replace_text_file(const fs::path& file, std::string_view text, files::Durable durable) {
  std::error_code error;
  const auto there = fs::symlink_status(file, error);
  if (fs::exists(there) && !fs::is_regular_file(there) && !fs::is_symlink(there))
    files::open_regular(file, O_RDONLY);  // says why not
  files::NewFile to(file);
  to.write(text);
  to.finish(durable);
}

void write_text_file(const fs::path& file, std::string_view text) {
  std::error_code error;
  const auto there = fs::symlink_status(file, error);
  if (!fs::exists(there) || fs::is_regular_file(there)) return replace_text_file(file, text);
  const files::FileHandle out(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!out) throw errno_error(errno, file.string());
  files::write_all(out.get(), text, file);
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

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace terrace
