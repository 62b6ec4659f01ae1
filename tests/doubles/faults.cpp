#include <terrace/tests/doubles/faults.h>

#include <random>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace {
namespace {

class FaultyCommunicator final : public Communicator {
 public:
  FaultyCommunicator(std::unique_ptr<Communicator> inner, const CommunicationFaults& faults)
      : inner_(std::move(inner)),
        faults_(faults),
        rank_(inner_->rank()),
        size_(inner_->size()),
        name_(inner_->name()),
        machines_(inner_->machines()),
        random_(faults.seed * 1'000'003 + static_cast<std::uint64_t>(rank_)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  const comm::Machines& machines() const override { return machines_; }

  void issue(Stream& stream, comm::Call call) override {
    if (dies_now()) inner_.reset();  // as when the rank's thread unwinds: calls issued before still end
    if (!inner_) {
      stream.submit([what = dead()] { throw Error(what); });
      return;
    }
    if (faults_.longest_delay.count() > 0) {
      const auto choices = static_cast<std::uint64_t>((faults_.longest_delay - faults_.shortest_delay).count() + 1);
      const auto delay = faults_.shortest_delay + std::chrono::microseconds(random_() % choices);
      stream.submit([delay] { std::this_thread::sleep_for(delay); });
    }
    inner_->issue(stream, std::move(call));
  }

  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    if (dies_now()) inner_.reset();
    if (!inner_) throw Error(dead());
    auto part = inner_->split(color, key, name);
    return part ? with_faults(std::move(part), faults_) : nullptr;
  }

 private:
  bool dies_now() { return ++calls_ == faults_.dies_at_call && rank_ == faults_.dying_rank; }
  std::string dead() const { return fmt::format("{}: rank {} died at its call {}, as injected", name_, rank_, calls_); }

  std::unique_ptr<Communicator> inner_;
  const CommunicationFaults faults_;
  const int rank_, size_;
  const std::string name_;
  const comm::Machines machines_;
  std::mt19937_64 random_;
  std::uint64_t calls_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> with_faults(std::unique_ptr<Communicator> inner, const CommunicationFaults& faults) {
  return std::make_unique<FaultyCommunicator>(std::move(inner), faults);
}

}  // namespace terrace
