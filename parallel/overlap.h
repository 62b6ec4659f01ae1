// How much of the ranks' communication is hidden: runs while this rank computes. Of a run and of a simulation alike, from the
// same times of the same lanes.
//
// Collectives count, messages of a pipeline do not: a receive stands on its lane long before there is anything to receive. What
// a run measures holds the wait for the slowest rank too.
//
// Pure. Threads: one at a time.
#pragma once

#include <vector>

#include <terrace/memory/tier.h>

namespace terrace {

struct Communicated {
  double seconds = 0;   // in which something was gathered or reduced
  double hidden_s = 0;  // of these, beside computing
  [[nodiscard]] double hidden() const { return seconds > 0 ? hidden_s / seconds : 0; }
};

class OverlapMeter {
 public:
  void add(Lane lane, double begin_s, double end_s);  // lanes that neither compute nor communicate are not counted
  Communicated take();                                // of everything since the last call

 private:
  struct Interval {
    double begin_s, end_s;
  };
  static std::vector<Interval> united(std::vector<Interval> intervals);

  std::vector<Interval> computing_, communicating_;
};

}  // namespace terrace
