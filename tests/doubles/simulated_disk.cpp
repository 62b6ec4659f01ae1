#include <terrace/tests/doubles/simulated_disk.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <stdexcept>
#include <utility>

#include <terrace/offload/io/io_progress.h>

namespace terrace {

SimulatedDisk::SimulatedDisk(int files, std::uint64_t bytes_each)
    : now_(static_cast<std::size_t>(files), std::vector<std::byte>(bytes_each)), durable_(now_) {}

void SimulatedDisk::sync() { durable_ = now_; }
void SimulatedDisk::power_loss() { now_ = durable_; }

void SimulatedDisk::power_loss(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t f = 0; f < now_.size(); ++f) {
    for (std::size_t at = 0; at < now_[f].size(); at += kPageBytes) {
      const auto bytes = std::min<std::size_t>(kPageBytes, now_[f].size() - at);
      if (random() & 1) std::memcpy(durable_[f].data() + at, now_[f].data() + at, bytes);
    }
  }
  now_ = durable_;
}

namespace {

using What = SimulatedFault::What;

class SimulatedEngine final : public IoEngine {
 public:
  SimulatedEngine(std::shared_ptr<SimulatedDisk> disk, std::uint64_t seed, std::vector<SimulatedFault> faults)
      : disk_(std::move(disk)), random_(seed), faults_(std::move(faults)) {}

  void submit(std::span<IoRequest* const> requests) override {
    for (IoRequest* request : requests) {
      if (request->file < 0 || request->file >= disk_->files()) throw std::logic_error("IoEngine: no such file");
      request->moved_bytes = 0;
      Flight flight{request, random_() % 4, nullptr};
      for (const auto& fault : faults_) {
        if (fault.only && *fault.only != request->op) continue;
        if (fault.at_request == (fault.only ? submitted(*fault.only) : submitted_[0] + submitted_[1])) flight.fault = &fault;
      }
      ++submitted(request->op);
      flights_.push_back(flight);
    }
  }

  // A poll is the unit of time: it reduces the delay of each flight by one; flights without delay continue in a random order.
  std::size_t poll(std::chrono::nanoseconds wait) override {
    if (std::ranges::all_of(flights_, [this](const Flight& f) { return is_stuck(f); })) {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, wait, [this] { return woken_; });
      woken_ = false;
      return 0;
    }
    std::ranges::shuffle(flights_, random_);
    std::vector<std::pair<IoRequest*, int>> ended;
    std::erase_if(flights_, [&](Flight& flight) {
      if (is_stuck(flight) || flight.delay-- > 0) return false;
      const auto error_number = carry_on(flight);
      if (error_number) ended.emplace_back(flight.request, *error_number);
      flight.delay = random_() % 2;
      return error_number.has_value();
    });
    for (const auto& [request, error_number] : ended) request->done(*request, error_number);
    return ended.size();
  }

  void wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    wake_.notify_one();
  }

  std::size_t in_flight() const override { return flights_.size(); }
  std::string name() const override { return "simulated"; }

 private:
  struct Flight {
    IoRequest* request = nullptr;
    std::uint64_t delay = 0;
    const SimulatedFault* fault = nullptr;
  };
  std::uint64_t& submitted(IoRequest::Op op) { return submitted_[static_cast<std::size_t>(op)]; }
  bool is_stuck(const Flight& flight) const {
    return flight.fault && flight.fault->what == What::never && !disk_->stuck_requests_end();
  }

  std::optional<int> carry_on(Flight& flight) {
    IoRequest& request = *flight.request;
    const SimulatedFault* const fault = std::exchange(flight.fault, nullptr);  // once
    if (!fault) return io::account(request, transfer(request, some_of(request), 0));
    const auto rest = request.bytes - request.moved_bytes;
    switch (fault->what) {
      case What::error: return fault->error_number;
      case What::zero_length: return io::account(request, 0);
      case What::short_transfer: return io::account(request, transfer(request, std::max(kPageBytes, rest / 2), 0));
      case What::flip_bit: return flip_bit(request, rest);
      case What::stale: return stale(request, rest);
      case What::misdirected: return io::account(request, transfer(request, rest, neighbour(request, rest)));
      case What::torn:  // the first half arrives, success is reported for all
        transfer(request, rest / 2, 0);
        return io::account(request, static_cast<std::int64_t>(rest));
      case What::never: break;
    }
    // A request that would hang forever ends now: the disk has released it.
    const auto result = io::account(request, transfer(request, rest, 0));
    disk_->count_late_end();
    return result;
  }

  // Usually the whole transfer, sometimes only some pages.
  std::uint64_t some_of(const IoRequest& request) {
    const auto rest = request.bytes - request.moved_bytes;
    const auto pages = rest / kPageBytes;
    return pages > 1 && random_() % 4 == 0 ? (1 + random_() % pages) * kPageBytes : rest;
  }

  // Returns how many bytes the file had; `shift` misdirects the transfer.
  std::int64_t transfer(IoRequest& request, std::uint64_t bytes, std::int64_t shift) {
    const auto file = disk_->file(request.file);
    const auto offset = request.offset + request.moved_bytes + static_cast<std::uint64_t>(shift);
    if (offset >= file.size()) return 0;
    bytes = std::min<std::uint64_t>(bytes, file.size() - offset);
    std::byte* const memory = request.buffer + request.moved_bytes;
    if (request.op == IoRequest::Op::read) {
      std::memcpy(memory, file.data() + offset, bytes);
    } else {
      std::memcpy(file.data() + offset, memory, bytes);
    }
    return static_cast<std::int64_t>(bytes);
  }

  std::optional<int> flip_bit(IoRequest& request, std::uint64_t rest) {
    const auto start = request.moved_bytes;
    const auto moved = transfer(request, rest, 0);
    const auto bit = std::byte{1} << (random_() % 8);
    const auto at = moved > 0 ? random_() % static_cast<std::uint64_t>(moved) : 0;
    if (request.op == IoRequest::Op::read) {
      request.buffer[start + at] ^= bit;
    } else if (moved > 0) {
      disk_->file(request.file)[request.offset + start + at] ^= bit;
    }
    return io::account(request, moved);
  }

  // A write that is acknowledged but not done; a read that returns the older durable bytes.
  std::optional<int> stale(IoRequest& request, std::uint64_t rest) {
    const auto old = disk_->durable(request.file);
    const auto offset = request.offset + request.moved_bytes;
    if (request.op == IoRequest::Op::read && offset + rest <= old.size()) {
      std::memcpy(request.buffer + request.moved_bytes, old.data() + offset, rest);
    }
    return io::account(request, static_cast<std::int64_t>(rest));
  }

  std::int64_t neighbour(const IoRequest& request, std::uint64_t rest) {
    const auto offset = request.offset + request.moved_bytes;
    const auto size = disk_->file(request.file).size();
    if (offset + rest + kPageBytes <= size) return static_cast<std::int64_t>(kPageBytes);
    return offset >= kPageBytes ? -static_cast<std::int64_t>(kPageBytes) : 0;
  }

  const std::shared_ptr<SimulatedDisk> disk_;
  std::mt19937_64 random_;
  const std::vector<SimulatedFault> faults_;
  std::array<std::uint64_t, 2> submitted_{};  // reads, writes
  std::vector<Flight> flights_;
  std::mutex mutex_;  // for wake(), the one call from other threads
  std::condition_variable wake_;
  bool woken_ = false;
};

}  // namespace

std::shared_ptr<SimulatedDisk> make_simulated_disk(int files, std::uint64_t bytes_each) {
  return std::make_shared<SimulatedDisk>(files, bytes_each);
}

std::unique_ptr<IoEngine> make_simulated_engine(std::shared_ptr<SimulatedDisk> disk, std::uint64_t seed,
                                                std::vector<SimulatedFault> faults) {
  return std::make_unique<SimulatedEngine>(std::move(disk), seed, std::move(faults));
}

}  // namespace terrace
