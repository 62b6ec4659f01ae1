// A disk in memory whose power can fail, and an I/O engine over it with seeded delays (counted in polls), reordering, short
// transfers, and faults at chosen requests. Part of terrace::testing.
//
// Owner:   shared by the engines that use it, one after the other, over "power losses".
// Threads: the engine's thread; sync() and power_loss() when nothing is in flight.
// Errors:  none; faults belong to the engine.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <terrace/offload/io/io_engine.h>

namespace terrace {

// Two states of each file: what the running system reads, and what is durable. Writes become durable only at sync().
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

struct SimulatedFault {
  std::uint64_t at_request = 0;  // counts from 0
  enum class What : std::uint8_t {
    error,
    short_transfer,
    zero_length,
    flip_bit,
    stale,
    misdirected,
    torn,
    never
  } what = What::error;
  int error_number = 5;
  std::optional<IoRequest::Op> only = {};  // counts these only, because the order of reads and writes depends on timing
};
std::shared_ptr<SimulatedDisk> make_simulated_disk(int files, std::uint64_t bytes_each);
std::unique_ptr<IoEngine> make_simulated_engine(std::shared_ptr<SimulatedDisk> disk, std::uint64_t seed,
                                                std::vector<SimulatedFault> faults = {});

}  // namespace terrace
