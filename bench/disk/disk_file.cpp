#include <terrace/bench/disk/disk_file.h>

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <thread>

#include <fmt/format.h>

#include <terrace/core/base/files.h>
#include <terrace/core/base/folders.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/units.h>

namespace terrace::bench {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& directory, const std::string& what, int error_number) {
  throw Error(fmt::format("{}: {}: {}\n  give another directory, or repair this one (terrace doctor --nvme-path {})",
                          directory.string(), what, describe_errno(error_number), directory.string()));
}

// The alignment that the kernel requires for direct I/O on this file; a page if it does not tell.
std::uint64_t direct_alignment(int descriptor) {
#if defined(STATX_DIOALIGN)
  struct statx info {};
  if (::syscall(SYS_statx, descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 && (info.stx_mask & STATX_DIOALIGN)) {
    return std::max<std::uint64_t>(info.stx_dio_offset_align, kPageBytes);
  }
#endif
  return kPageBytes;
}

// True if requests to the disk are under way; false if the system does not tell.
bool has_work(dev_t device) {
  std::ifstream in_flight(fmt::format("/sys/dev/block/{}:{}/inflight", major(device), minor(device)));
  std::uint64_t reads = 0, writes = 0;
  in_flight >> reads >> writes;
  return reads + writes > 0;
}

}  // namespace

void demand_directory(const fs::path& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  const auto refuse = [&](const std::string& what) {
    throw base::Refused(
        fmt::format("{} {}\n  give a directory on the disk to be measured: the benchmark makes a new file in it, "
                    "and removes it",
                    path.string(), what));
  };
  switch (status.type()) {
    case fs::file_type::directory: return;
    case fs::file_type::not_found: refuse("does not exist"); break;
    case fs::file_type::regular: refuse("is a file, and existing files are never written"); break;
    case fs::file_type::block:
    case fs::file_type::character: refuse("is a device, and its content would be destroyed"); break;
    default: refuse(error ? "cannot be examined: " + describe_errno(error.value()) : "is not a directory");
  }
}

void settle(const fs::path& folder) {
  const files::FileHandle opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat info {};
  if (!opened || ::syncfs(opened.get()) != 0 || ::fstat(opened.get(), &info) != 0) fail(folder, "syncfs", errno);
  using namespace std::chrono_literals;
  constexpr std::chrono::milliseconds kQuiet = 100ms, kMost = 20s;
  const auto begin = std::chrono::steady_clock::now();
  for (auto now = begin, quiet_since = begin; now - quiet_since < kQuiet && now - begin < kMost;
       now = std::chrono::steady_clock::now()) {
    if (has_work(info.st_dev)) quiet_since = now;
    std::this_thread::sleep_for(2ms);
  }
}

DiskFile::DiskFile(const fs::path& directory, std::uint64_t bytes) : bytes_(bytes) {
  demand_directory(directory);
  open(directory);
  try {
    reserve(directory);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
  if (direct_) alignment_bytes_ = direct_alignment(descriptor_);
}

DiskFile::~DiskFile() { ::close(descriptor_); }

void DiskFile::open(const fs::path& directory) {
  descriptor_ = files::create_nameless(directory, O_DIRECT);
  if (descriptor_ == -EINVAL) {
    direct_ = false;
    descriptor_ = files::create_nameless(directory);
  }
  if (descriptor_ < 0) fail(directory, "no file can be created", -descriptor_);
}

void DiskFile::reserve(const fs::path& directory) const {
  struct statvfs system {};
  if (::fstatvfs(descriptor_, &system) != 0) fail(directory, "statvfs", errno);
  const auto free_bytes = std::uint64_t{system.f_bavail} * system.f_frsize;
  const auto refuse = [&] {
    throw Error(fmt::format("{}: not enough space: {} needed, {} free\n  give a smaller --size, or free space there",
                            directory.string(), format_bytes(bytes_), format_bytes(free_bytes)),
                ErrorKind::does_not_fit);
  };
  if (bytes_ > free_bytes) refuse();
  int result = 0;
  do {
    result = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes_)) == 0 ? 0 : errno;
  } while (result == EINTR);
  if (result == EOPNOTSUPP) result = ::ftruncate(descriptor_, static_cast<off_t>(bytes_)) == 0 ? 0 : errno;
  if (result == ENOSPC) refuse();
  if (result != 0) fail(directory, "space cannot be reserved", result);
}

void DiskFile::sync() const {
  if (::fdatasync(descriptor_) != 0) throw Error(fmt::format("the benchmark's file: fdatasync: {}", describe_errno(errno)));
}

void DiskFile::forget_cache() const { ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); }

}  // namespace terrace::bench
