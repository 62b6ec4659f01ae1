#include <terrace/core/text_file.h>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <sstream>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/units.h>

namespace terrace {
namespace {

constexpr std::size_t kMostBytes = 64 * kMiB;  // more than any valid file; /dev/zero has no end

namespace fs = std::filesystem;

struct Opened {
  Opened(const fs::path& file, int flags, mode_t mode = 0) : descriptor(::open(file.c_str(), flags | O_CLOEXEC, mode)) {
    if (descriptor < 0) throw Error(describe_errno(errno));
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened() { ::close(descriptor); }
  const int descriptor;
};

void sync(const Opened& file) {
  if (::fsync(file.descriptor) != 0 && errno != EINVAL) throw Error(describe_errno(errno));  // pipes and some folders cannot be
}

void write_all(const fs::path& file, int flags, std::string_view text, Durable durable) {
  const Opened out(file, flags, 0666);
  while (!text.empty()) {
    const auto wrote = ::write(out.descriptor, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) throw Error(describe_errno(errno));
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  if (durable == Durable::yes) sync(out);
}

}  // namespace

std::string read_text_file(const fs::path& file) {
  const Opened in(file, O_RDONLY);
  std::string text;
  std::array<char, 64 * 1024> part{};
  while (true) {
    const auto got = ::read(in.descriptor, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(errno == EISDIR ? "it is a directory" : describe_errno(errno));
    if (got == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(got));
    if (text.size() > kMostBytes) throw Error(fmt::format("it is larger than {}", format_bytes(kMostBytes)));
  }
}

void write_text_file(const fs::path& file, std::string_view text, Durable durable) {
  std::error_code error;
  const auto linked = fs::symlink_status(file, error);
  if (fs::exists(linked) && !fs::is_regular_file(linked)) return write_all(file, O_WRONLY | O_CREAT | O_TRUNC, text, durable);
  const auto beside = fs::path(file).concat(".tmp");
  try {
    write_all(beside, O_WRONLY | O_CREAT | O_TRUNC, text, durable);
    if (::rename(beside.c_str(), file.c_str()) != 0) throw Error(describe_errno(errno));
  } catch (const Error&) {
    ::unlink(beside.c_str());
    throw;
  }
  if (durable == Durable::yes) sync_to_disk(fs::absolute(file).parent_path());
}

void sync_to_disk(const fs::path& path) try { sync(Opened(path, O_RDONLY)); } catch (const Error& error) {
  throw Error(fmt::format("{} cannot be written to its disk: {}", path.string(), error.what()));
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
