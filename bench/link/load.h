// Work that can go on beside other work: a step that is repeated, and how much each step does.
//
// Owner:   the caller owns what the functions use; a stream belongs to its load.
// Threads: steps and their finish() from one thread; the next steps may be of another.
// Errors:  those of the work. A step that throws has left nothing queued that needs its thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <terrace/bench/session.h>
#include <terrace/core/device/device.h>

namespace terrace::bench {

struct Load {
  std::string name;                      // "upload"
  std::string unit = "gb_per_s";         // the key of its rate
  double amount = 0;                     // of one step, in that unit times a second
  std::function<void()> step;            // may leave work queued, but not without limit
  std::function<void()> finish = [] {};  // waits until nothing is queued
};

// Work that `issue` puts on a stream. Two steps are queued, so that the device never waits for the host.
Load stream_load(const std::string& name, double amount, std::unique_ptr<Stream> stream,
                 const std::function<void(Stream&)>& issue);
// Copies over and over between two places, by the device's copy engines.
Load copy_load(const std::string& name, Device& device, std::byte* to, const std::byte* from, std::uint64_t bytes);

// Rates of a work, alone and while all of them run, by run.
struct LoadRates {
  std::vector<double> alone, together;
};
// In each run: every work alone, then all at once. The others begin before the clock of the first starts and go on until it has
// stopped, so that all rates are of the same moments. In the order of the works.
std::vector<LoadRates> rates_together(Session& session, const std::vector<Load>& loads);
// The shares of the rate alone that are left, by run.
std::vector<double> shares(const LoadRates& rates);
// Reports the rate of a work alone, under its name. `what`: what else says what was measured.
void measure_alone(Session& session, const Load& load, const Result& what);
// Reports one work beside another as "ONE_beside_OTHER": both rates, and their shares.
void measure_pair(Session& session, const Load& one, const Load& other, const Result& what);

}  // namespace terrace::bench
