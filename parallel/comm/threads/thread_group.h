// The ranks of one communicator as threads of one process. A collective has two arrival points. At the first, every rank has
// published its buffers; then each rank does its share directly on the buffers of all. At the second, all have finished.
//
// Owner:   shared by the transports of its ranks.
// Threads: each rank on its own threads.
// Errors:  a failure ends every wait, but a call returns only when no other rank can still read its buffers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <terrace/parallel/comm/communicator.h>
#include <terrace/parallel/comm/positions.h>

namespace terrace::comm {

class ThreadGroup {
 public:
  // `machine_of_rank`: a number for each rank, equal for ranks that count as on one machine.
  ThreadGroup(std::vector<int> machine_of_rank, std::string name, const CommunicatorOptions& options);

  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const Machines& machines() const { return machines_; }
  void run(int rank, const Call& call, std::uint64_t number);
  // The group that this rank belongs to from now on, and its rank there.
  std::pair<std::shared_ptr<ThreadGroup>, int> split(int rank, int color, int key, const std::string& name,
                                                     std::uint64_t number);
  void check(int rank, std::uint64_t number, std::chrono::steady_clock::time_point since);
  void fail(int rank, const std::string& why) noexcept;
  void leave(int rank) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  struct Seat {
    int color = -1, key = 0;
    std::string name;
    std::shared_ptr<ThreadGroup> group;
    int rank = 0;
  };
  struct Member {
    PositionLog log;
    const Call* call = nullptr;  // the collective under way
    bool arrived = false;
    Seat seat;
  };
  // A send that waits for its receive, or is being read by it.
  struct Message {
    ConstBytes bytes;
    bool taken = false, done = false;
  };
  using Route = std::tuple<int, int, int>;  // source, destination, lane

  void collective(int rank, const Call& call, std::uint64_t number);
  void send(int rank, const Call& call, std::uint64_t number);
  void receive(int rank, const Call& call, std::uint64_t number);
  void arrive(Lock& lock, int rank, const Call& call, std::uint64_t number);
  void finish(Lock& lock);
  void check_match();
  void seat_all();
  void share(int rank) const;  // this rank's part of the work, without the lock
  // Waits until `ready`; fails if a call that is not patient waits too long, or if one of the `awaited` ranks has left.
  template <class Ready, class Awaited>
  void wait(Lock& lock, int rank, const Call& call, std::uint64_t number, Ready ready, Awaited awaited);
  void fail_locked(const std::string& why);
  [[nodiscard]] std::string positions() const;

  const std::string name_;
  const CommunicatorOptions options_;
  const std::vector<int> machine_of_rank_;
  const Machines machines_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Member> members_;
  std::uint64_t started_ = 0;  // collectives whose first arrival point is passed
  int arrived_ = 0;
  int working_ = 0;  // ranks between the two points
  std::map<Route, std::deque<Message*>> messages_;
  std::optional<std::string> failure_;
};

}  // namespace terrace::comm
