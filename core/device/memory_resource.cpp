#include <terrace/core/device/memory_resource.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>

namespace terrace {

Slab& Slab::operator=(Slab&& other) noexcept {
  if (this != &other) {
    reset();
    owner_ = std::exchange(other.owner_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void Slab::reset() {
  if (owner_ && data_) owner_->release(data_, bytes_);
  owner_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

std::byte* Slab::detach() {
  owner_ = nullptr;
  bytes_ = 0;
  return std::exchange(data_, nullptr);
}

namespace {

// Adaptors detach the inner slab and return their own slab over the same bytes, so that its release comes through them.

class LimitedMemory final : public MemoryResource {
 public:
  LimitedMemory(MemoryResource& inner, std::uint64_t limit_bytes) : inner_(inner), limit_bytes_(limit_bytes) {}

  // Reserve first, allocate after: two threads cannot both take the last bytes.
  Slab allocate(std::size_t bytes) override {
    const auto wanted = round_up(std::max<std::size_t>(bytes, 1), kPageBytes);  // slabs are rounded up in the same way
    {
      const std::lock_guard lock(mutex_);
      if (wanted < bytes || wanted > limit_bytes_ - used_bytes_) {
        throw Error(fmt::format("{} bytes ({}) exceed the memory limit: {} of {} bytes are in use", bytes, format_bytes(bytes),
                                used_bytes_, limit_bytes_));
      }
      used_bytes_ += wanted;
    }
    try {
      Slab inner = inner_.allocate(bytes);
      const auto size = inner.bytes();
      return {this, inner.detach(), size};
    } catch (...) {
      give_back(wanted);
      throw;
    }
  }

 private:
  void release(std::byte* data, std::size_t bytes) noexcept override {
    release_to(inner_, data, bytes);
    give_back(bytes);
  }
  void give_back(std::uint64_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    used_bytes_ -= bytes;
  }

  MemoryResource& inner_;
  const std::uint64_t limit_bytes_;
  std::mutex mutex_;
  std::uint64_t used_bytes_ = 0;
};

class CountingMemory final : public StatisticsMemory {
 public:
  explicit CountingMemory(MemoryResource& inner) : inner_(inner) {}

  Slab allocate(std::size_t bytes) override {
    Slab inner = inner_.allocate(bytes);
    const auto size = inner.bytes();
    {
      const std::lock_guard lock(mutex_);
      ++statistics_.allocations;
      statistics_.now_bytes += size;
      statistics_.peak_bytes = std::max(statistics_.peak_bytes, statistics_.now_bytes);
    }
    return {this, inner.detach(), size};
  }
  MemoryStatistics statistics() const override {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  void release(std::byte* data, std::size_t bytes) noexcept override {
    release_to(inner_, data, bytes);
    const std::lock_guard lock(mutex_);
    statistics_.now_bytes -= bytes;
  }

  MemoryResource& inner_;
  mutable std::mutex mutex_;
  MemoryStatistics statistics_;
};

class FaultyMemory final : public MemoryResource {
 public:
  FaultyMemory(MemoryResource& inner, std::uint64_t fail_at) : inner_(inner), fail_at_(fail_at) {}

  Slab allocate(std::size_t bytes) override {
    const auto n = ++allocations_;
    if (n == fail_at_) throw Error(fmt::format("injected fault at allocation {} ({} bytes)", n, bytes));
    Slab inner = inner_.allocate(bytes);
    const auto size = inner.bytes();
    return {this, inner.detach(), size};
  }

 private:
  void release(std::byte* data, std::size_t bytes) noexcept override { release_to(inner_, data, bytes); }

  MemoryResource& inner_;
  const std::uint64_t fail_at_;
  std::atomic<std::uint64_t> allocations_{0};
};

}  // namespace

std::unique_ptr<MemoryResource> make_limited_memory(MemoryResource& inner, std::uint64_t limit_bytes) {
  return std::make_unique<LimitedMemory>(inner, limit_bytes);
}

std::unique_ptr<StatisticsMemory> make_statistics_memory(MemoryResource& inner) {
  return std::make_unique<CountingMemory>(inner);
}

std::unique_ptr<MemoryResource> make_faulty_memory(MemoryResource& inner, std::uint64_t fail_at_allocation) {
  return std::make_unique<FaultyMemory>(inner, fail_at_allocation);
}

}  // namespace terrace
