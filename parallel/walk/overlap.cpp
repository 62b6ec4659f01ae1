#include <terrace/parallel/walk/overlap.h>

#include <algorithm>
#include <utility>

namespace terrace::walk {

void OverlapMeter::add(Lane lane, double begin_s, double end_s) {
  if (lane == Lane::compute || lane == Lane::update) computing_.push_back({begin_s, end_s});
  if (is_collective(lane)) communicating_.push_back({begin_s, end_s});
}

std::vector<OverlapMeter::Interval> OverlapMeter::united(std::vector<Interval> intervals) {
  std::ranges::sort(intervals, {}, &Interval::begin_s);
  std::vector<Interval> out;
  for (const auto& i : intervals) {
    if (out.empty() || i.begin_s > out.back().end_s) {
      out.push_back(i);
    } else {
      out.back().end_s = std::max(out.back().end_s, i.end_s);
    }
  }
  return out;
}

Communicated OverlapMeter::take() {
  const auto computing = united(std::exchange(computing_, {})), communicating = united(std::exchange(communicating_, {}));
  Communicated out;
  auto beside = computing.begin();
  for (const auto& c : communicating) {
    out.seconds += c.end_s - c.begin_s;
    while (beside != computing.end() && beside->end_s <= c.begin_s) ++beside;
    for (auto at = beside; at != computing.end() && at->begin_s < c.end_s; ++at)
      out.hidden_s += std::min(at->end_s, c.end_s) - std::max(at->begin_s, c.begin_s);
  }
  return out;
}

}  // namespace terrace::walk
