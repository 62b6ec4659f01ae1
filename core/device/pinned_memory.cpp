#include <numa.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/memory_resource.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/machine/machine.h>
#include <terrace/core/machine/memlock.h>

namespace terrace {
namespace {

constexpr std::size_t kFaultTaskBytes = 32 * kMiB;  // one pool task's share of the first touch
constexpr std::size_t kRefusalBytes = 64 * kMiB;    // larger slabs are checked against the available memory first
constexpr const char* kMend = "request less, or free memory";

// Reserves 2 MiB more than requested and trims both ends, so that the slab begins on a huge page and keeps its exact size.
std::byte* map_aligned(std::size_t bytes) {
  const std::size_t reserved = bytes + kHugePageBytes;
  void* const base = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(base);
  const std::size_t head =
      round_up(reinterpret_cast<std::uintptr_t>(begin), kHugePageBytes) - reinterpret_cast<std::uintptr_t>(begin);
  if (head) munmap(begin, head);
  if (const std::size_t tail = reserved - head - bytes) munmap(begin + head + bytes, tail);
  return begin + head;
}

class PinnedMemory final : public MemoryResource {
 public:
  PinnedMemory(ThreadPool& pool, int numa_node, Log log) : pool_(pool), numa_node_(numa_node), log_(std::move(log)) {
    if (numa_node >= 0 && numa_available() >= 0 && numa_node > numa_max_node()) {
      throw Error(fmt::format("NUMA node {} does not exist; the last one is {}", numa_node, numa_max_node()),
                  ErrorKind::refused);
    }
  }

  Slab allocate(std::size_t asked_bytes) override {
    const std::size_t bytes = round_up(std::max<std::size_t>(asked_bytes, 1), kPageBytes);
    if (bytes < asked_bytes || bytes > SIZE_MAX - kHugePageBytes)
      throw Error(fmt::format("{} bytes cannot be allocated", asked_bytes));
    refuse_what_is_not_there(bytes);
    std::byte* const data = map_aligned(bytes);
    if (!data)
      throw errno_error(errno, {}, fmt::format("{} ({} bytes) cannot be allocated", format_bytes(bytes), bytes), kMend);
    Slab slab(this, data, bytes);
    madvise(data, bytes, MADV_HUGEPAGE);  // a hint: a kernel without huge pages gives small ones
    bind(data, bytes);
    fault_in(data, bytes);
    lock(data, bytes);
    return slab;
  }

 private:
  void release(std::byte* data, std::size_t bytes) noexcept override { munmap(data, bytes); }  // unlocks as well

  // Linux overcommits memory: without this check, too large a slab kills the process in fault_in() instead of throwing here.
  static void refuse_what_is_not_there(std::size_t bytes) {
    if (bytes < kRefusalBytes) return;
    const auto available = read_topology().available_memory_bytes;
    if (available && bytes > available) {
      throw errno_error(ENOMEM, {},
                        fmt::format("{} ({} bytes) cannot be allocated: only {} are available", format_bytes(bytes), bytes,
                                    format_bytes(available)),
                        kMend);
    }
  }

  // Called before the first touch. Other threads touch the memory, so the node must be set even for "where the caller runs".
  void bind(std::byte* data, std::size_t bytes) const {
    if (numa_available() < 0 || numa_max_node() == 0) return;
    const int node = numa_node_ >= 0 ? numa_node_ : numa_node_of_cpu(sched_getcpu());
    if (node >= 0) numa_tonode_memory(data, bytes, node);
  }

  void fault_in(std::byte* data, std::size_t bytes) const {
    const auto tasks = static_cast<std::int64_t>(ceil_div(bytes, kFaultTaskBytes));
    pool_.parallel_for(tasks, [=](std::int64_t task) {
      const std::size_t begin = static_cast<std::size_t>(task) * kFaultTaskBytes;
      const std::size_t end = std::min(begin + kFaultTaskBytes, bytes);
      for (std::size_t at = begin; at < end; at += kPageBytes) {
        *reinterpret_cast<volatile unsigned char*>(data + at) = 0;
      }
    });
  }

  void lock(std::byte* data, std::size_t bytes) const {
    if (mlock(data, bytes) != 0) warn_of_memlock(log_, bytes, errno);
  }

  ThreadPool& pool_;
  const int numa_node_;
  const Log log_;
};

}  // namespace

void warn_of_memlock(const Log& log, std::uint64_t bytes, int error_number) {
  log.warn_once(Log::Once::memlock,
                fmt::format("{} cannot be locked in memory: {}; it may be swapped out, and I/O takes more CPU time; {}",
                            format_bytes(bytes), describe_errno(error_number), machine::memlock_mend()));
}

std::string machine::memlock_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : format_bytes(limit.rlim_cur);
}

std::string machine::memlock_mend() {
  const auto limit = machine::memlock_limit();
  const auto first = "the memlock limit is " + limit;
  if (limit == "unlimited") return first + ", so the memory itself is short: lower `host-memory`, or raise a container's limit";
  return first +
         "; raise it: `ulimit -l unlimited` in a shell, ulimit memlock=-1 of a container, LimitMEMLOCK=infinity of a service";
}

std::unique_ptr<MemoryResource> make_pinned_memory(ThreadPool& pool, int numa_node, const Log& log) {
  return std::make_unique<PinnedMemory>(pool, numa_node, log);
}

}  // namespace terrace
