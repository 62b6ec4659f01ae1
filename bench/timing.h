// Times several works in turns: on a machine that is shared with others, they are compared within the same moments, never one
// after the other.
//
// Threads: the caller's. Errors: those of the works.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <terrace/bench/session.h>

namespace terrace::bench {

// seconds[w][r] of work w in turn r. One untimed turn warms up. A work shorter than 20 ms is repeated within its turn, and the
// turn has the mean. All works have the same number of turns: session.runs(), or fewer if stopped.
std::vector<std::vector<double>> time_in_turns(Session& session, const std::string& what,
                                               std::span<const std::function<void()>> works);
// The turns of a single work.
std::vector<double> time_runs(Session& session, const std::string& what, const std::function<void()>& work);
// amount ÷ seconds, for each turn.
std::vector<double> rates(double amount, const std::vector<double>& seconds);

}  // namespace terrace::bench
