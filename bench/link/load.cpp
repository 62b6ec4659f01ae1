#include <terrace/bench/link/load.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <terrace/bench/link/link.h>
#include <terrace/bench/statistics.h>
#include <terrace/core/base/trace.h>

namespace terrace::bench {
namespace {

constexpr double kLeast_s = 0.1;  // of a measurement: many steps of each work
constexpr std::int64_t kLeastSteps = 3;

// A stream with the event of the step before the last one.
struct Queued {
  std::unique_ptr<Stream> stream;
  Event before = {};
};

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

std::vector<double> rates_at_once(const std::vector<Load>& loads) {
  std::deque<Background> others;
  std::vector<Background::Mark> begins;
  for (std::size_t i = 1; i < loads.size(); ++i) others.emplace_back(loads[i]);
  for (auto& other : others) begins.push_back(other.wait_for(2));  // its pipeline is full
  std::vector<double> all(loads.size());
  bool enough = false;  // the others' steps may be longer
  while (!enough) {
    all[0] = rate_of(loads[0]);
    enough = true;
    for (std::size_t i = 0; i < others.size(); ++i) {
      const auto end = others[i].wait_for(0);
      enough = enough && end.steps - begins[i].steps >= kLeastSteps;
      all[i + 1] = rate(loads[i + 1].amount, end.steps - begins[i].steps, end.end_ns - begins[i].end_ns);
    }
  }
  return all;
}

}  // namespace

Load stream_load(const std::string& name, double amount, std::unique_ptr<Stream> stream,
                 const std::function<void(Stream&)>& issue) {
  const auto queued = std::make_shared<Queued>(Queued{.stream = std::move(stream)});
  return {.name = name,
          .amount = amount,
          .step =
              [=] {
                issue(*queued->stream);
                std::exchange(queued->before, queued->stream->record()).wait();
              },
          .finish = [=] { queued->before.wait(); }};
}

Load copy_load(const std::string& name, Device& device, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  return stream_load(name, 1e-9 * static_cast<double>(bytes * copies_of(bytes)), device.make_stream(name), [=](Stream& stream) {
    for (std::uint64_t i = 0; i < copies_of(bytes); ++i) stream.copy(to, from, bytes);
  });
}

std::vector<LoadRates> rates_together(Session& session, const std::vector<Load>& loads) {
  std::vector<LoadRates> all(loads.size());
  for (std::int64_t r = 0; r < session.runs() && !session.stopped(); ++r) {
    session.progress(fmt::format("{} beside {}: run {} of {}", loads[0].name, loads.back().name, r + 1, session.runs()));
    for (std::size_t i = 0; i < loads.size(); ++i) all[i].alone.push_back(rate_of(loads[i]));
    const auto together = rates_at_once(loads);
    for (std::size_t i = 0; i < loads.size(); ++i) all[i].together.push_back(together[i]);
  }
  return all;
}

std::vector<double> shares(const LoadRates& rates) {
  std::vector<double> all;
  for (std::size_t r = 0; r < rates.together.size(); ++r) all.push_back(rates.together[r] / rates.alone[r]);
  return all;
}

void measure_alone(Session& session, const Load& load, const Result& what) {
  std::vector<double> all;
  for (std::int64_t r = 0; r < session.runs() && !session.stopped(); ++r) all.push_back(rate_of(load));
  if (all.empty()) return;  // stopped
  Result row{{"op", load.name}};
  row.update(what);
  row.update({{load.unit, median(all)}, {"runs", all.size()}, {"spread", spread(all)}});
  session.result(row);
}

void measure_pair(Session& session, const Load& one, const Load& other, const Result& what) {
  const auto rates = rates_together(session, {one, other});
  if (rates[0].together.empty()) return;  // stopped
  Result row{{"op", one.name + "_beside_" + other.name}};
  row.update(what);
  row.update({{one.unit, median(rates[0].together)},
              {"share", median(shares(rates[0]))},
              {"other_" + other.unit, median(rates[1].together)},
              {"other_share", median(shares(rates[1]))},
              {"runs", rates[0].together.size()},
              {"spread", spread(rates[0].together)}});
  session.result(row);
}

}  // namespace terrace::bench
