#include <terrace/core/base/folders.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <terrace/core/base/error.h>

namespace terrace::files {

namespace fs = std::filesystem;

namespace {

Error not_durable(const fs::path& folder, int error_number) {
  return errno_error(error_number, folder.string(), folder.string() + " cannot be written to its disk");
}

}  // namespace

// Where the file system cannot make files without a name, the file has a name until unlink() below.
int create_nameless(const fs::path& folder, int flags) {
  const int made = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC | flags, 0600);
  if (made >= 0) return made;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT) return -errno;
  auto name = (folder / "terrace-XXXXXX").string();
  const int named = ::mkostemp(name.data(), O_CLOEXEC | flags);
  if (named < 0) return -errno;
  ::unlink(name.c_str());
  return named;
}

std::vector<FileHandle> with_folders_above(const fs::path& folder) {
  std::vector<FileHandle> all;
  const auto demand_no_access = [&] {  // any other reason would leave a folder whose name is not durable
    if (errno != EACCES) throw not_durable(folder, errno);
  };
  struct stat below {};
  bool first = true;
  FileHandle at(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (; at; at = FileHandle(::openat(at.get(), "..", O_PATH | O_DIRECTORY | O_CLOEXEC))) {
    struct stat here {};
    if (::fstat(at.get(), &here) != 0) break;
    if (!first && (here.st_dev != below.st_dev || here.st_ino == below.st_ino)) return all;  // the root's ".." is the root
    if (FileHandle opened(::openat(at.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)); opened)
      all.push_back(std::move(opened));
    else
      demand_no_access();
    below = here;
    first = false;
  }
  demand_no_access();
  return all;
}

void sync_with_folders_above(const fs::path& folder) {
  for (const auto& one : with_folders_above(folder))
    if (::fsync(one.get()) != 0 && errno != EINVAL)  // EINVAL: some folders cannot be synced
      throw not_durable(folder, errno);
}

void make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw errno_error(error.value(), folder.string());
  sync_with_folders_above(folder);
}

}  // namespace terrace::files
