// Works timed in turns: what shares a machine with others is compared within the same moments, never one after the other.
//
// Threads: the caller's. Errors: of the works.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <terrace/bench/session.h>

namespace terrace::bench {

// seconds[w][r] of work w in turn r. One untimed turn warms up; a work shorter than 20 ms is repeated within its turn
// and its mean taken. All works have the same number of turns: session.runs(), or fewer if stopped.
std::vector<std::vector<double>> time_in_turns(Session& session, const std::string& what,
                                               std::span<const std::function<void()>> works);
// Of one work: its turns.
std::vector<double> time_runs(Session& session, const std::string& what, const std::function<void()>& work);
// amount ÷ seconds, one by one.
std::vector<double> rates(double amount, const std::vector<double>& seconds);

}  // namespace terrace::bench
