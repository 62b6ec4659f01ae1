#include <terrace/bench/link/load.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/trace.h>

namespace terrace::bench {
namespace {

constexpr double kLeast_s = 0.1;  // of a measurement: many steps of each work
constexpr std::int64_t kLeastSteps = 3;

// A work on a thread of its own, and when its steps ended.
class Background {
 public:
  explicit Background(const Load& load) : load_(load), thread_([this] { run(); }) {}
  ~Background() {
    stop_ = true;  // the thread is joined by its destructor
  }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  struct Mark {
    std::int64_t steps = 0, end_ns = 0;
  };
  // When at least so many steps have ended, the last one. Throws the work's error.
  Mark wait_for(std::int64_t steps) {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return last_.steps >= steps || error_; });
    if (error_) std::rethrow_exception(error_);
    return last_;
  }

 private:
  void run() {
    try {
      while (!stop_) {
        load_.step();
        const std::lock_guard lock(mutex_);
        last_ = {last_.steps + 1, now_ns()};
        ended_.notify_one();
      }
      load_.finish();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
      ended_.notify_one();
    }
  }

  const Load& load_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  Mark last_;
  std::exception_ptr error_;
  std::jthread thread_;  // last: it uses the others
};

double rate(double amount, std::int64_t steps, std::int64_t ns) {
  return amount * static_cast<double>(steps) / (static_cast<double>(std::max<std::int64_t>(ns, 1)) * 1e-9);
}

// One work for a while; the pipeline of its steps is filled before.
double rate_of(const Load& load) {
  load.step();
  const auto begin = now_ns();
  std::int64_t steps = 0;
  while (steps < kLeastSteps || static_cast<double>(now_ns() - begin) * 1e-9 < kLeast_s) load.step(), ++steps;
  const auto end = now_ns();
  load.finish();
  return rate(load.amount, steps, end - begin);
}

std::pair<double, double> both_rates(const Load& one, const Load& other) {
  Background background(other);
  const auto begin = background.wait_for(2);  // its pipeline is full
  double mine = rate_of(one);
  auto end = background.wait_for(0);
  while (end.steps - begin.steps < kLeastSteps) {  // the other work's steps are longer
    mine = rate_of(one);
    end = background.wait_for(0);
  }
  return {mine, rate(other.amount, end.steps - begin.steps, end.end_ns - begin.end_ns)};
}

}  // namespace

BesideRates rates_beside(Session& session, const Load& one, const Load& other) {
  BesideRates all;
  for (std::int64_t r = 0; r < session.runs() && !session.stopped(); ++r) {
    session.progress(fmt::format("{} beside {}: run {} of {}", one.name, other.name, r + 1, session.runs()));
    all.alone.push_back(rate_of(one));
    all.other_alone.push_back(rate_of(other));
    const auto [mine, others] = both_rates(one, other);
    all.beside.push_back(mine);
    all.other_beside.push_back(others);
  }
  return all;
}

}  // namespace terrace::bench
