// A disk in memory whose power can fail: its files as the running system sees them, and their durable content.
//
// Owner:   shared by the engines that use it, one after the other, over "power losses".
// Threads: the engine's thread; sync() and power_loss() when nothing is in flight.
// Errors:  none; faults belong to the engine.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace terrace {

class SimulatedDisk {
 public:
  SimulatedDisk(int files, std::uint64_t bytes_each);
  [[nodiscard]] int files() const { return static_cast<int>(now_.size()); }
  [[nodiscard]] std::span<std::byte> file(int i) { return now_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] std::span<const std::byte> durable(int i) const { return durable_[static_cast<std::size_t>(i)]; }
  void sync();        // makes everything written durable
  void power_loss();  // drops everything not synced
  // Lets requests that would hang forever end, at their engine's next poll. May be called from any thread.
  void let_stuck_requests_end() { released_.store(true); }
  [[nodiscard]] bool stuck_requests_end() const { return released_.load(); }
  // How many such requests have ended; the caller then sees the bytes that they wrote or read.
  [[nodiscard]] std::uint64_t late_ends() const { return late_ends_.load(std::memory_order_acquire); }
  void count_late_end() { late_ends_.fetch_add(1, std::memory_order_release); }  // called by the engine
  // Like real disks: of the pages not synced, some survive and some do not.
  void power_loss(std::uint64_t seed);

 private:
  std::vector<std::vector<std::byte>> now_, durable_;
  std::atomic<bool> released_{false};
  std::atomic<std::uint64_t> late_ends_{0};
};

}  // namespace terrace
