#include <terrace/core/base/file_lock.h>

#include <cerrno>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace::files {

Locked try_lock(int descriptor, int operation) {
  while (::flock(descriptor, operation | LOCK_NB) != 0)
    if (errno != EINTR) return errno == EWOULDBLOCK ? Locked::by_another : Locked::impossible;
  return Locked::yes;
}

void warn_without_locks(const Log& log, const std::filesystem::path& file) {
  const auto why = describe_errno(errno);
  log.warn_once(Log::Once::file_locks,
                fmt::format("{} cannot be locked: {}; nothing keeps two processes from writing there at the same time",
                            file.string(), why));
}

}  // namespace terrace::files
