// How much of a rank's communication is hidden, that is, runs while this rank computes. Runs and simulations count it in the
// same way, from the times of the same lanes.
//
// Only collectives are counted. A pipeline's messages are not: a receive occupies its lane long before its message is sent. The
// measured time of a run includes the wait for the slowest rank.
//
// Pure. Threads: one at a time.
#pragma once

#include <vector>

#include <terrace/memory/tier.h>

namespace terrace::walk {

struct Communicated {
  double seconds = 0;   // in which a collective ran
  double hidden_s = 0;  // of these, the seconds in which this rank computed
  [[nodiscard]] double hidden() const { return seconds > 0 ? hidden_s / seconds : 0; }
};

class OverlapMeter {
 public:
  void add(Lane lane, double begin_s, double end_s);  // ignores lanes that neither compute nor communicate
  Communicated take();                                // of everything added since the last call

 private:
  struct Interval {
    double begin_s, end_s;
  };
  static std::vector<Interval> united(std::vector<Interval> intervals);

  std::vector<Interval> computing_, communicating_;
};

}  // namespace terrace::walk
