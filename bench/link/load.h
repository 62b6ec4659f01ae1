// Work that can go on beside other work: a step that is repeated, and how much each step does.
//
// Owner:   the caller owns what the functions use. Threads: steps and their finish() from one thread; the next steps may be of
// another. Errors:  those of the work. A step that throws has left nothing queued that needs its thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <terrace/bench/session.h>

namespace terrace::bench {

struct Load {
  std::string name;                      // "upload"
  std::string unit = "gb_per_s";         // the key of its rate
  double amount = 0;                     // of one step, in that unit times a second
  std::function<void()> step;            // may leave work queued, but not without limit
  std::function<void()> finish = [] {};  // waits until nothing is queued
};

// Rates of two works, each alone and beside the other one, by run.
struct BesideRates {
  std::vector<double> alone, beside, other_alone, other_beside;
};
// In each run: one alone, the other alone, both. The other one begins before the clock starts and goes on until it has stopped,
// so that both rates are of the same moments.
BesideRates rates_beside(Session& session, const Load& one, const Load& other);

}  // namespace terrace::bench
