#include <terrace/offload/io/file_system.h>

#include <sys/statfs.h>

#include <array>
#include <cstdint>

#include <fmt/format.h>

namespace terrace::io {
namespace {

struct Known {
  std::uint64_t magic;
  const char* name;
  const char* objection;
};
// Numbers from linux/magic.h and the file systems' own sources; not all of them are in the installed header.
constexpr std::array<Known, 11> kKnown{{
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

}  // namespace

FileSystem file_system_of(const std::filesystem::path& path) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return {"unknown file system", ""};
  const auto magic = static_cast<std::uint64_t>(info.f_type) & 0xFFFFFFFFU;
  for (const auto& known : kKnown)
    if (known.magic == magic) return {known.name, known.objection};
  return {fmt::format("file system {:#x}", magic), ""};
}

}  // namespace terrace::io
