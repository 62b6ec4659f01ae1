#include <terrace/core/base/files.h>

#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace::files {
namespace {

namespace fs = std::filesystem;

constexpr long kPipeFileSystem = 0x50495045;  // magic number of pipe(2)'s file system; a named pipe lies on an ordinary one

[[noreturn]] void refuse(const fs::path& file, mode_t mode) {
  const char* const kind = S_ISDIR(mode)                    ? "a directory"
                           : S_ISFIFO(mode)                 ? "a named pipe"
                           : S_ISSOCK(mode)                 ? "a socket"
                           : S_ISBLK(mode) || S_ISCHR(mode) ? "a device"
                                                            : "something else";
  throw Error(fmt::format("it is not a regular file but {}", kind), ErrorKind::corrupt, {.path = file.string()});
}

bool is_unnamed_pipe(int descriptor, mode_t mode) {
  struct statfs system {};
  return S_ISFIFO(mode) && ::fstatfs(descriptor, &system) == 0 && system.f_type == kPipeFileSystem;
}

void sync(int descriptor, const fs::path& path) {
  if (::fsync(descriptor) != 0 && errno != EINVAL) throw errno_error(errno, path.string());  // some folders cannot be synced
}

}  // namespace

FileHandle::~FileHandle() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FileHandle open_regular(const fs::path& file, int flags, int directory, unsigned mode, UnnamedPipe unnamed_pipe) {
  FileHandle opened(::openat(directory, file.c_str(), flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode));
  struct stat info {};
  if (!opened) {
    const int error = errno;
    // Either a socket, or a pipe that is opened for writing and has no reader.
    if (error == ENXIO && ::fstatat(directory, file.c_str(), &info, 0) == 0) refuse(file, info.st_mode);
    if (error == EISDIR) refuse(file, S_IFDIR);
    errno = error;
    return opened;
  }
  if (::fstat(opened.get(), &info) != 0) throw errno_error(errno, file.string());
  if (!S_ISREG(info.st_mode) && !(unnamed_pipe == UnnamedPipe::accepted && is_unnamed_pipe(opened.get(), info.st_mode)))
    refuse(file, info.st_mode);
  // From here on, reads and writes wait for the disk. (io_uring would end a request on such a file with EAGAIN.)
  const int now = ::fcntl(opened.get(), F_GETFL);
  if (now < 0 || ::fcntl(opened.get(), F_SETFL, now & ~O_NONBLOCK) != 0) throw errno_error(errno, file.string());
  return opened;
}

int create_temporary(int directory, const std::string& name, unsigned mode, int flags) {
  for (bool again = true;; again = false) {
    const int opened = ::openat(directory, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | flags, mode);
    if (opened >= 0) return opened;
    if (errno == EINTR) continue;
    if (errno != EEXIST || !again) return -errno;
    struct stat info {};
    if (::fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(info.st_mode)) return -EEXIST;
    if (::unlinkat(directory, name.c_str(), 0) != 0 && errno != ENOENT) return -errno;
  }
}

NewFile::NewFile(fs::path file, unsigned mode, int flags)
    : file_(std::move(file)), temporary_(fs::path(file_).concat(kTemporaryEnding)) {
  const int made = create_temporary(AT_FDCWD, temporary_.string(), mode, flags);
  if (made == -EEXIST)
    throw Error(fmt::format("{} is not a file that terrace left there: remove it", temporary_.string()), ErrorKind::failed,
                {.code = code_of_errno(EEXIST), .path = temporary_.string()});
  if (made < 0) throw errno_error(-made, file_.string());
  handle_ = FileHandle(made);
}

NewFile::~NewFile() {
  if (!finished_) ::unlink(temporary_.c_str());
}

void write_all(int descriptor, std::string_view text, const fs::path& file) {
  while (!text.empty()) {
    const auto wrote = ::write(descriptor, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) throw errno_error(errno, file.string());
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

void NewFile::finish(Durable durable) {
  if (durable == Durable::yes) sync(handle_.get(), file_);
  if (::rename(temporary_.c_str(), file_.c_str()) != 0) throw errno_error(errno, file_.string());
  finished_ = true;
  if (durable == Durable::yes) sync_to_disk(fs::absolute(file_).parent_path());
}

void sync_to_disk(const fs::path& path) try {
  const FileHandle opened(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!opened) throw errno_error(errno, path.string());
  sync(opened.get(), path);
} catch (const Error& error) {
  throw Error(fmt::format("{} cannot be written to its disk: {}", path.string(), error.what()), error);
}

std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::vector<fs::directory_entry> all;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator(); entry.increment(error))
    all.push_back(*entry);
  if (error) throw errno_error(error.value(), folder.string(), folder.string() + " cannot be read");
  std::ranges::sort(all, {}, &fs::directory_entry::path);
  return all;
}

void remove_path(const fs::path& path) {
  int error = ::unlink(path.c_str()) == 0 ? 0 : errno;
  if (error == EISDIR) error = ::rmdir(path.c_str()) == 0 ? 0 : errno;
  if (error != 0 && error != ENOENT) throw errno_error(error, path.string(), path.string() + " cannot be removed");
}

}  // namespace terrace::files
