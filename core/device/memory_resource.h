// Large blocks of memory: page-aligned, exact-size, faulted in once and kept.
//
// Owner:   the caller owns a Slab; it returns its bytes when destroyed. The resource must outlive its slabs.
// Threads: allocate() from any thread.
// Errors:  Error(ErrorKind::failed) that names the size, the limit and errno.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <terrace/core/base/log.h>

namespace terrace {

class MemoryResource;

// An owning, move-only block. `bytes` is exactly what was requested, rounded up to the page.
class Slab {
 public:
  Slab() = default;
  Slab(MemoryResource* owner, std::byte* data, std::size_t bytes) : owner_(owner), data_(data), bytes_(bytes) {}
  Slab(Slab&& other) noexcept { *this = std::move(other); }
  Slab& operator=(Slab&& other) noexcept;
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab() { reset(); }
  void reset();
  std::byte* detach();  // gives up ownership: the caller must return the pointer to the resource (adaptors)
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  MemoryResource* owner_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  virtual Slab allocate(std::size_t bytes) = 0;

 protected:
  // For adaptors: returns a detached block to the resource it came from.
  static void release_to(MemoryResource& inner, std::byte* data, std::size_t bytes) noexcept { inner.release(data, bytes); }

 private:
  friend class Slab;
  virtual void release(std::byte* data, std::size_t bytes) noexcept = 0;
};

// mmap on huge pages (madvise), NUMA-local to `numa_node` (-1: where the caller runs), faulted in by all pool threads, locked
// in memory if the limit permits it (otherwise one warning).
class ThreadPool;
std::unique_ptr<MemoryResource> make_pinned_memory(ThreadPool& pool, int numa_node = -1, const Log& log = {});
// Warns that memory cannot be locked, and how to fix it: once, because all callers share one limit.
void warn_of_memlock(const Log& log, std::uint64_t bytes, int error_number);

// Adaptors that wrap another resource: a hard limit, statistics, and a fault at the n-th allocation (tests).
std::unique_ptr<MemoryResource> make_limited_memory(MemoryResource& inner, std::uint64_t limit_bytes);
struct MemoryStatistics {
  std::uint64_t now_bytes = 0, peak_bytes = 0, allocations = 0;
};
class StatisticsMemory : public MemoryResource {
 public:
  [[nodiscard]] virtual MemoryStatistics statistics() const = 0;
};
std::unique_ptr<StatisticsMemory> make_statistics_memory(MemoryResource& inner);
std::unique_ptr<MemoryResource> make_faulty_memory(MemoryResource& inner, std::uint64_t fail_at_allocation);

}  // namespace terrace
