#include <terrace/offload/store/dead_stores.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <system_error>

#include <terrace/core/base/file_lock.h>
#include <terrace/offload/store/extent_files.h>

namespace terrace::store {
namespace {

void remove_if_dead(const std::filesystem::path& folder) {
  const files::FileHandle directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  if (!directory || ::fstat(directory.get(), &info) != 0 || info.st_uid != ::geteuid()) return;
  const files::FileHandle lock(::openat(directory.get(), kLockName, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (lock && files::try_lock(lock.get(), LOCK_EX) != files::Locked::yes)
    return;  // if locks do not work, its process may be alive
  // Without a lock file, the owner died before it made one, or is about to make one. The files are kept, because they may
  // belong to a living owner, which makes the folder again if it is removed here.
  if (lock)
    for (const char* name : {kDataName, kLockName}) ::unlinkat(directory.get(), name, 0);
  ::rmdir(folder.c_str());  // fails if the folder contains anything else
}

}  // namespace

void remove_dead_temporaries(const std::filesystem::path& beside) {
  std::error_code error;
  std::filesystem::directory_iterator entries(beside, error);
  if (error) return;
  for (const auto& entry : entries)
    if (entry.path().filename().string().ends_with(kTemporarySuffix)) remove_if_dead(entry.path());
}

}  // namespace terrace::store
