// A group of ranks that exchange bytes. Every data call is enqueued on a stream, like a matrix product: it returns at once,
// runs when the stream reaches it, and its results are valid once the stream has passed it. So communication overlaps with
// computation through streams and events, and the stream's events carry errors.
//
// All ranks of a communicator must issue its collectives in the same order and with equal sizes. A rank may issue them on
// several streams; they run in the order of issue. send() and receive() are matched by (source, destination, lane), in order
// within a lane. Different lanes never wait for each other if each has its own stream (a stream is a FIFO).
//
// A call may work in place only if its comment allows it; otherwise the bytes that it reads and writes must not overlap.
// Buffers must stay valid until the call has ended on its stream. Reductions have one order, which machines.h defines: the same
// bits on every backend.
//
// Owner:   the caller; one object for each rank. Destroying it tells the other ranks that this rank has left.
// Threads: one thread issues at a time.
// Errors:  wrong arguments throw at once. A later failure (a rank died, left or waited too long, calls do not match) fails
//          every waiting call of the communicator on every rank, with a RankFailed that names the rank; the communicator cannot
//          be used after it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <terrace/core/device/device.h>
#include <terrace/parallel/comm/call.h>
#include <terrace/parallel/comm/machines.h>

namespace terrace {

class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual const std::string& name() const = 0;         // "world", or the name given to split()
  [[nodiscard]] virtual const comm::Machines& machines() const = 0;  // the machines of its ranks
  // Enqueues a checked call. All calls below end here.
  virtual void issue(Stream& stream, comm::Call call) = 0;
  // Collective: a communicator of the ranks with the same color, in the order of (key, rank). Null for a negative color. It
  // blocks until all ranks have come, and runs after all earlier collectives of this rank.
  virtual std::unique_ptr<Communicator> split(int color, int key, const std::string& name) = 0;

  // all = every rank's `mine`, in rank order. In place: mine is its own block of all.
  void all_gather(Stream& stream, comm::ConstBytes mine, comm::Bytes all);
  // mine = the fold of block rank() of every rank's `all`. In place: mine is its own block of all.
  void reduce_scatter(Stream& stream, const comm::Reduction& reduction, comm::ConstBytes all, comm::Bytes mine);
  // In place: from is to.
  void all_reduce(Stream& stream, const comm::Reduction& reduction, comm::ConstBytes from, comm::Bytes to);
  // `to` is used on the root alone. In place there: from is to.
  void reduce(Stream& stream, const comm::Reduction& reduction, comm::ConstBytes from, comm::Bytes to, int root);
  void broadcast(Stream& stream, comm::Bytes bytes, int root);
  // from[r] goes to rank r, to[r] comes from rank r. Sizes may differ, but both sides must know them; no call works in place.
  void all_to_all(Stream& stream, std::vector<comm::ConstBytes> from, std::vector<comm::Bytes> to);
  void send(Stream& stream, comm::ConstBytes bytes, int destination, int lane);
  void receive(Stream& stream, comm::Bytes bytes, int source, int lane);
  void barrier(Stream& stream);
};

inline constexpr int kMessageLanes = 1 << 15;  // every MPI accepts tags below this

struct CommunicatorOptions {
  // A call that waits longer than this for other ranks fails, and with it all other calls, unless it is patient. It must be
  // longer than the slowest computation between two calls.
  std::chrono::milliseconds time_limit = std::chrono::minutes(10);
  // This many consecutive ranks of the first communicator count as a machine; 0: the real machines. With it, a few ranks can
  // add in the order of many machines.
  int ranks_per_machine = 0;
};

// A group of one.
std::unique_ptr<Communicator> make_self_communicator();
// The ranks of one group as threads of this process; element r belongs to rank r. They read each other's buffers directly.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int ranks, const CommunicatorOptions& options = {});

}  // namespace terrace
