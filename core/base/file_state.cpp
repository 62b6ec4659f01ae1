#include <terrace/core/base/file_state.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace::files {

FileState state_of(int descriptor) {
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) throw errno_error(errno, {});
  const auto ns = [](const timespec& time) { return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; };
  return {info.st_dev, info.st_ino, static_cast<std::uint64_t>(info.st_size), ns(info.st_mtim), ns(info.st_ctim)};
}

void read_all(int descriptor, std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const auto got = ::pread(descriptor, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw errno_error(errno, {});
    if (got == 0) throw Error(fmt::format("it has become shorter: it ends at byte {}", offset));
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

}  // namespace terrace::files
