#include <terrace/bench/ranks/paced_io.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace terrace::bench {
namespace {

using Time = std::chrono::steady_clock::time_point;
using Seconds = std::chrono::duration<double>;

class PacedEngine final : public IoEngine {
 public:
  PacedEngine(std::unique_ptr<IoEngine> inner, double read_bytes_per_s, double write_bytes_per_s)
      : inner_(std::move(inner)), bytes_per_s_{read_bytes_per_s, write_bytes_per_s} {}

  void submit(std::span<IoRequest* const> requests) override {
    const auto now = std::chrono::steady_clock::now();
    for (IoRequest* const request : requests) {
      const auto direction = static_cast<std::size_t>(request->op);
      const Seconds takes(static_cast<double>(request->bytes) / bytes_per_s_.at(direction));
      auto& free = free_.at(direction);
      free = std::max(free, now) + std::chrono::duration_cast<Time::duration>(takes);
      under_way_[request] = {free, std::move(request->done)};
      request->done = [this](IoRequest& ended, int error_number) { keep(ended, error_number); };
    }
    inner_->submit(requests);
  }

  std::size_t poll(std::chrono::nanoseconds wait) override {
    if (!ended_.empty()) {
      const auto left = ended_.begin()->first - std::chrono::steady_clock::now();
      wait = std::clamp<std::chrono::nanoseconds>(left, std::chrono::nanoseconds{0}, wait);
    }
    inner_->poll(wait);
    std::size_t told = 0;
    while (!ended_.empty() && ended_.begin()->first <= std::chrono::steady_clock::now()) {
      const auto [request, error_number] = ended_.extract(ended_.begin()).mapped();
      request->done(*request, error_number);  // may destroy the request, may submit others
      ++told;
    }
    return told;
  }
  void wake() override { inner_->wake(); }
  std::size_t in_flight() const override { return inner_->in_flight() + ended_.size(); }
  std::string name() const override { return inner_->name(); }

 private:
  // Stores the ended request for later. It must not run inside request.done, which it replaces.
  void keep(IoRequest& request, int error_number) {
    auto entry = under_way_.extract(&request);
    request.done = std::move(entry.mapped().done);  // the caller's own function
    ended_.emplace(entry.mapped().due, Ended{&request, error_number});
  }

  struct UnderWay {
    Time due;
    std::function<void(IoRequest&, int)> done;
  };
  struct Ended {
    IoRequest* request = nullptr;
    int error_number = 0;
  };
  const std::unique_ptr<IoEngine> inner_;
  const std::array<double, 2> bytes_per_s_;  // of reads, of writes
  std::array<Time, 2> free_{};               // when the paced disk will have finished its requests
  std::map<IoRequest*, UnderWay> under_way_;
  std::multimap<Time, Ended> ended_;  // ended below, but not yet reported
};

}  // namespace

std::unique_ptr<IoEngine> make_paced_engine(std::unique_ptr<IoEngine> inner, double read_bytes_per_s,
                                            double write_bytes_per_s) {
  return std::make_unique<PacedEngine>(std::move(inner), read_bytes_per_s, write_bytes_per_s);
}

}  // namespace terrace::bench
