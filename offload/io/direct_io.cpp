#include <terrace/offload/io/direct_io.h>

// The kernel's own declaration of statx, because glibc 2.36 lacks these members. So no <sys/stat.h> here.
#include <fcntl.h>
#include <linux/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>

#include <fmt/format.h>

#include <terrace/core/base/units.h>

namespace terrace::io {

std::optional<DirectIoRules> direct_io_rules(int descriptor) {
  struct statx info {};
  if (::syscall(SYS_statx, descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) != 0) return std::nullopt;
  if ((info.stx_mask & STATX_DIOALIGN) == 0) return std::nullopt;
  return DirectIoRules{.memory_bytes = info.stx_dio_mem_align, .offset_bytes = info.stx_dio_offset_align};
}

bool pages_suffice(const std::optional<DirectIoRules>& rules) {
  if (!rules) return true;
  return rules->memory_bytes != 0 && rules->offset_bytes != 0 && kPageBytes % rules->memory_bytes == 0 &&
         kPageBytes % rules->offset_bytes == 0;
}

files::FileHandle open_again_direct(int descriptor) {
  const auto name = fmt::format("/proc/self/fd/{}", descriptor);
  const int access = ::fcntl(descriptor, F_GETFL) & O_ACCMODE;
  files::FileHandle opened(::open(name.c_str(), access | O_DIRECT | O_CLOEXEC));
  if (opened && pages_suffice(direct_io_rules(opened.get()))) return opened;
  return files::FileHandle(::open(name.c_str(), access | O_CLOEXEC));
}

bool drive_can_be_polled(int descriptor) {
  struct statx info {};
  if ((::fcntl(descriptor, F_GETFL) & O_DIRECT) == 0) return false;
  if (::syscall(SYS_statx, descriptor, "", AT_EMPTY_PATH, 0, &info) != 0) return false;
  const auto device = fmt::format("/sys/dev/block/{}:{}", info.stx_dev_major, info.stx_dev_minor);
  for (const auto* const queue : {"/queue", "/../queue"}) {  // of a drive, or of the drive of a partition
    int polled = 0;
    if (std::ifstream(device + queue + "/io_poll") >> polled) return polled == 1;
  }
  return false;
}

}  // namespace terrace::io
