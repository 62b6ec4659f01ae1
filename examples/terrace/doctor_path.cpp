#include <fcntl.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/units.h>
#include <terrace/examples/terrace/doctor.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
using Status = Finding::Status;

struct FileSystem {
  std::uint64_t magic;
  const char* name;
  const char* objection;  // why it is no disk tier; empty when it is one
};
// Numbers from linux/magic.h and the file systems' own sources; not all of them are in the installed header.
constexpr std::array<FileSystem, 11> kFileSystems{{
    {0xEF53, "ext4", ""},
    {0x58465342, "xfs", ""},
    {0x9123683E, "btrfs", ""},
    {0x2FC12FC1, "zfs", ""},
    {0xF2F52010, "f2fs", ""},
    {0x01021994, "tmpfs", "its bytes are memory, not disk"},
    {0x858458F6, "ramfs", "its bytes are memory, not disk"},
    {0x794C7630, "overlay", "a container's layered file system: slow, and gone with the container"},
    {0x6969, "nfs", "a network file system: its latency stalls every step"},
    {0x65735546, "fuse", "a file system in user space: direct I/O may not be direct"},
    {0x01021997, "9p", "a file system shared from a host: direct I/O may not be direct"},
}};

// One page written past the page cache, and removed.
int try_direct_io(const fs::path& folder) {
  const auto file = folder / fmt::format(".terrace-doctor-{}", ::getpid());
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  void* const page = ::operator new (kPageBytes, std::align_val_t{kPageBytes});
  std::memset(page, 0, kPageBytes);
  const auto written = ::pwrite(fd, page, kPageBytes, 0);
  const int error = written == static_cast<ssize_t>(kPageBytes) ? 0 : written < 0 ? errno : ENOSPC;
  ::operator delete (page, std::align_val_t{kPageBytes});
  ::close(fd);
  ::unlink(file.c_str());
  return error;
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
    const auto magic = static_cast<std::uint64_t>(info.f_type) & 0xFFFFFFFFU;
    const FileSystem* known = nullptr;
    for (const auto& f : kFileSystems)
      if (f.magic == magic) known = &f;
    const bool objection = known && *known->objection;
    const auto type = known ? std::string(known->name) : fmt::format("file system {:#x}", magic);
    out.push_back({objection ? Status::warn : Status::ok, name,
                   objection ? fmt::format("{}: {}", type, known->objection) : type,
                   objection ? "give an --nvme-path on a local disk (ext4 or xfs)" : ""});
    const auto free_bytes = static_cast<std::uint64_t>(info.f_bavail) * static_cast<std::uint64_t>(info.f_bsize);
    const bool little = free_bytes < kGiB;
    out.push_back({little ? Status::warn : Status::ok, name, format_bytes(free_bytes) + " free",
                   little ? "free space there, or give another --nvme-path" : ""});
  }
  const int direct = try_direct_io(path);
  if (direct == 0) {
    out.push_back({Status::ok, name, "direct I/O works", ""});
  } else if (direct == EINVAL || direct == EOPNOTSUPP) {
    out.push_back({Status::warn, name, "direct I/O is refused: the page cache takes memory and time beside the budgets",
                   "give an --nvme-path on a local disk (ext4 or xfs)"});
  } else {
    out.push_back({Status::fail, name, "cannot be written: " + describe_errno(direct),
                   "mend the rights or the mount, or give another --nvme-path"});
  }
  return out;
}

}  // namespace terrace::cli
