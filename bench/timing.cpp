#include <terrace/bench/timing.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <fmt/format.h>

#include <terrace/core/base/trace.h>

namespace terrace::bench {
namespace {

constexpr double kLeast_s = 0.02;  // long enough that clock resolution and scheduling do not matter

double seconds_of(const std::function<void()>& work, std::int64_t times) {
  const auto begin = now_ns();
  for (std::int64_t i = 0; i < times; ++i) work();
  return static_cast<double>(std::max<std::int64_t>(now_ns() - begin, 1)) * 1e-9 / static_cast<double>(times);
}

}  // namespace

std::vector<std::vector<double>> time_in_turns(Session& session, const std::string& what,
                                               std::span<const std::function<void()>> works) {
  std::vector<std::vector<double>> seconds(works.size());
  std::vector<std::int64_t> times;
  for (const auto& work : works)
    times.push_back(std::max<std::int64_t>(1, std::llround(std::ceil(kLeast_s / seconds_of(work, 1)))));
  for (std::int64_t r = 0; r < session.runs() && !session.stopped(); ++r) {
    session.progress(fmt::format("{}: run {} of {}", what, r + 1, session.runs()));
    for (std::size_t w = 0; w < works.size(); ++w) seconds[w].push_back(seconds_of(works[w], times[w]));
  }
  return seconds;
}

std::vector<double> time_runs(Session& session, const std::string& what, const std::function<void()>& work) {
  return time_in_turns(session, what, {&work, 1}).front();
}

std::vector<double> rates(double amount, const std::vector<double>& seconds) {
  std::vector<double> out;
  for (const double s : seconds) out.push_back(amount / s);
  return out;
}

}  // namespace terrace::bench
