// From an event of one stream, over a host thread, to the end of a copy on another one: what every move of the engine waits at
// least.
#include <exception>
#include <semaphore>

#include <terrace/bench/link/link.h>
#include <terrace/bench/statistics.h>
#include <terrace/bench/timing.h>
#include <terrace/core/base/units.h>
#include <terrace/core/math/math.h>

namespace terrace::bench {
namespace {

constexpr int kRounds = 100;

// Told by a stream's thread, awaited by the host thread that makes the next move: as the engine's lanes do.
class Told {
 public:
  Stream::Told by_stream() {
    return [this](const std::exception_ptr& failure) {
      failure_ = failure;
      told_.release();
    };
  }
  void wait() {
    told_.acquire();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::binary_semaphore told_{0};
  std::exception_ptr failure_;
};

}  // namespace

void measure_hand_off(Session& session, Device& device) {
  const Slab host = device.host_memory()->allocate(kPageBytes), gpu = device.memory().allocate(2 * kPageBytes);
  const TensorView one{gpu.data() + kPageBytes, DType::fp32, {1}};
  const auto compute = device.make_stream("compute"), link = device.make_stream("link");
  Told computed, copied;
  auto us = time_runs(session, "hand_off", [&] {
    for (int i = 0; i < kRounds; ++i) {
      device.math().zero(*compute, one);
      compute->then(computed.by_stream());
      computed.wait();
      link->copy(gpu.data(), host.data(), kPageBytes);
      link->then(copied.by_stream());
      copied.wait();
    }
  });
  if (us.empty()) return;
  for (auto& value : us) value *= 1e6 / kRounds;
  session.result({{"op", "hand_off"}, {"latency_us", median(us)}, {"runs", us.size()}, {"spread", spread(us)}});
}

}  // namespace terrace::bench
