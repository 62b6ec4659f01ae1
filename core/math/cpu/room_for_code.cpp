#include <terrace/core/math/cpu/room_for_code.h>

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>

namespace terrace::cpu {
namespace {

// The code of fp32 products takes 6 MiB (oneDNN 2.6 with AVX-512); the rest is for what threads allocate at their first
// product.
constexpr std::size_t kRoomBytes = 16 * kMiB;

std::string limits_in_words() {
  std::string text;
  const auto add = [&](auto resource, const char* what, const char* flag) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
      text += fmt::format("\n  the limit on {} is {}: raise it (ulimit {})", what, format_bytes(limit.rlim_cur), flag);
  };
  add(RLIMIT_DATA, "data memory", "-d");
  add(RLIMIT_AS, "address space", "-v");
  return text;
}

bool find_room() {
  void* const room = ::mmap(nullptr, kRoomBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED)
    throw Error(
        fmt::format("no memory is left for the code of matrix products: {} cannot be mapped: {}{}\n  lower the memory "
                    "budgets, or the number of threads or ranks",
                    format_bytes(kRoomBytes), describe_errno(errno), limits_in_words()));
  ::munmap(room, kRoomBytes);
  return true;
}

}  // namespace

void demand_room_for_code() {
  static const bool found = find_room();
  static_cast<void>(found);
}

}  // namespace terrace::cpu
