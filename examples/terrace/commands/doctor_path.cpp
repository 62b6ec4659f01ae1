#include <fcntl.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/terrace/commands/doctor.h>
#include <terrace/offload/io/file_ops.h>
#include <terrace/offload/io/file_system.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
using Status = Finding::Status;

struct Tried {
  int direct = 0, without_copy_on_write = 0;  // 0, or an errno
};

// Writes one page with direct I/O, as a store does, and removes the file.
Tried try_direct_io(const fs::path& folder) {
  const auto file = folder / fmt::format(".terrace-doctor-{}", ::getpid());
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0) return {.direct = errno};
  const int refused = -io::make_file_ops()->switch_off_copy_on_write(fd);
  void* const page = ::operator new (kPageBytes, std::align_val_t{kPageBytes});
  std::memset(page, 0, kPageBytes);
  const auto written = ::pwrite(fd, page, kPageBytes, 0);
  const int error = written == static_cast<ssize_t>(kPageBytes) ? 0 : written < 0 ? errno : ENOSPC;
  ::operator delete (page, std::align_val_t{kPageBytes});
  ::close(fd);
  ::unlink(file.c_str());
  return {.direct = error, .without_copy_on_write = refused};
}

}  // namespace

std::vector<Finding> examine_path(const fs::path& path) {
  const auto name = fmt::format("disk path {}", path.string());
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (fs::exists(path, error)) return {{Status::fail, name, "is not a folder", "give another --nvme-path"}};
    return {{Status::fail, name, "does not exist", fmt::format("mkdir -p {}, or give another --nvme-path", path.string())}};
  }
  std::vector<Finding> out;
  struct statfs info {};
  if (::statfs(path.c_str(), &info) == 0) {
    const auto found = io::file_system_of(path);
    const bool objection = !found.objection.empty();
    out.push_back({objection ? Status::warn : Status::ok, name,
                   objection ? fmt::format("{}: {}", found.name, found.objection) : found.name,
                   objection ? "give an --nvme-path on a local disk (ext4 or xfs)" : ""});
    const auto free_bytes = static_cast<std::uint64_t>(info.f_bavail) * static_cast<std::uint64_t>(info.f_bsize);
    const bool little = free_bytes < kGiB;
    out.push_back({little ? Status::warn : Status::ok, name, format_bytes(free_bytes) + " free",
                   little ? "make room there, or give another --nvme-path" : ""});
  }
  const auto [direct, copying] = try_direct_io(path);
  if (direct == 0 && copying == 0) {
    const bool btrfs = io::file_system_of(path).name == "btrfs";
    out.push_back({Status::ok, name,
                   btrfs ? "direct I/O works: a store switches copy-on-write off for its files" : "direct I/O works", ""});
  } else if (direct == 0) {
    out.push_back({Status::warn, name,
                   fmt::format("copy-on-write cannot be switched off: {}; writes then go through the page cache, which takes "
                               "memory and time outside the budgets",
                               describe_errno(copying)),
                   "give a new folder without copy-on-write (chattr +C), or an --nvme-path on ext4 or xfs"});
  } else if (direct == EINVAL || direct == EOPNOTSUPP) {
    out.push_back({Status::warn, name, "direct I/O is not supported: the page cache takes memory and time outside the budgets",
                   "give an --nvme-path on a local disk (ext4 or xfs)"});
  } else {
    out.push_back({Status::fail, name, "cannot be written: " + describe_errno(direct),
                   "change the permissions or the mount, or give another --nvme-path"});
  }
  return out;
}

}  // namespace terrace::cli
