#include <terrace/offload/direct_io.h>

// The kernel's own declaration of statx: glibc 2.36 has none of these members. So no <sys/stat.h> here.
#include <fcntl.h>
#include <linux/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <terrace/core/units.h>

namespace terrace {

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

}  // namespace terrace
