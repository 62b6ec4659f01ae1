// Runs a test's body once on each rank of a communicator: on threads of this process, or on the processes that mpirun started.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/parallel/comm/communicator.h>

namespace terrace::test {

struct Rank {
  std::unique_ptr<Communicator> comm;
  Device& device;
};

// The error that each rank's body threw; empty if it ended well. Ranks in other processes are not included.
using Outcome = std::vector<std::string>;

inline std::string outcome_of(const std::function<void(Rank&)>& body, std::unique_ptr<Communicator> comm, Device& device) {
  try {
    Rank rank{std::move(comm), device};
    body(rank);
  } catch (const std::exception& error) {
    return *error.what() ? error.what() : "an error without words";
  }
  return "";
}

inline Outcome on_threads(int ranks, const CommunicatorOptions& options, const std::function<void(Rank&)>& body) {
  ThreadPool pool(1);
  const auto device = make_cpu_device(pool);
  auto comms = make_thread_communicators(ranks, options);
  Outcome outcome(comms.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < comms.size(); ++r) {
    threads.emplace_back([&, r] { outcome[r] = outcome_of(body, std::move(comms[r]), *device); });
  }
  for (auto& thread : threads) thread.join();
  return outcome;
}

}  // namespace terrace::test
