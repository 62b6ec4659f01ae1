// A backend on the host (Transport), which runs one call on the thread of the stream that it was issued to, and the
// communicator that issues calls to it. The order of issue, skipped calls and the end of a rank are the same for all backends.
//
// Owner:   shared by the communicator and its unfinished calls: leave() is called after the last of them.
// Threads: run() on any number of threads, collectives one after the other in the order of issue; split() on the issuing one.
// Errors:  run() throws; then every later call fails with the same Error and fail() has told the other ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <terrace/parallel/comm/communicator.h>

namespace terrace::comm {

class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual const std::string& name() const = 0;
  [[nodiscard]] virtual const Machines& machines() const = 0;
  // Blocks until this rank's part has ended and its buffers are free. `number` counts this rank's calls from 1.
  virtual void run(const Call& call, std::uint64_t number) = 0;
  virtual std::shared_ptr<Transport> split(int color, int key, const std::string& name, std::uint64_t number) = 0;
  // For a call whose ranks met at `since` and whose bytes another transport moves: throws if the group failed or if it takes
  // too long.
  virtual void check(std::uint64_t number, std::chrono::steady_clock::time_point since) = 0;
  // This rank stops: calls of other ranks that wait for it fail with this reason. The first reason is kept.
  virtual void fail(const std::string& why) noexcept = 0;
  virtual void leave() noexcept = 0;  // no further call will come
};

std::unique_ptr<Communicator> make_communicator(std::shared_ptr<Transport> transport);
// Takes the transport that make_communicator() was given out of the communicator, to use it in another way. No call may have
// been issued. std::logic_error for a decorator.
std::shared_ptr<Transport> release_transport(std::unique_ptr<Communicator> communicator);

}  // namespace terrace::comm
