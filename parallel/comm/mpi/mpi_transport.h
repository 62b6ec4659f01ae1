// Ranks as processes under MPI. Collectives within one machine go through its shared window; messages between two ranks, and
// everything between machines, are MPI's non-blocking calls, tested by the waiting thread, which yields.
//
// Sends are synchronous (MPI_Issend): they end when the receiver has arrived, as on every other backend, so that a program that
// would deadlock on a large message does so on a small one, too.
//
// Owner, threads, errors: transport.h. After a failure, MPI may still read buffers that it has not sent yet: the process should
// end.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <terrace/parallel/comm/between_machines.h>
#include <terrace/parallel/comm/mpi/machine_window.h>
#include <terrace/parallel/comm/mpi/mpi.h>
#include <terrace/parallel/comm/mpi/mpi_pulse.h>
#include <terrace/parallel/comm/mpi/watchdog.h>
#include <terrace/parallel/comm/transport.h>

namespace terrace::comm {

class MpiTransport final : public Transport {
 public:
  // Collective. `pulse`: that of the communicator from which this one was split.
  MpiTransport(MPI_Comm ranks, std::string name, const CommunicatorOptions& options, std::shared_ptr<MpiPulse> pulse = nullptr);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  const Machines& machines() const override { return machines_; }
  void run(const Call& call, std::uint64_t number) override;
  std::shared_ptr<Transport> split(int color, int key, const std::string& name, std::uint64_t number) override;
  void check(std::uint64_t number, std::chrono::steady_clock::time_point since) override;
  void fail(const std::string& why) noexcept override;
  void leave() noexcept override;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kDataTag = 0, kMatchTag = 1, kFailureTag = 2, kLeftTag = 3;  // tags in inner_
  [[nodiscard]] Watchdog watchdog(const std::string& where) const;
  void demand_same_division() const;
  void demand_shared_memory() const;
  void dispatch(const Call& call, std::uint64_t number);
  void meet(const Call& call, std::uint64_t number);  // for a call whose bytes another transport moves
  // Sends and receives all messages at once; every span may be larger than MPI can count. `grace` is added to the time limit.
  void exchange(MPI_Comm comm, int tag, const std::vector<Outgoing>& out, const std::vector<Incoming>& in, std::uint64_t number,
                std::chrono::milliseconds grace = {});
  static void cancel(std::vector<MPI_Request>& requests);
  // Checks a wait for `peer` in the call `number`; throws if the wait cannot end.
  void check(int peer, bool left, std::uint64_t number, std::chrono::steady_clock::time_point since);
  [[nodiscard]] bool one_machine() const { return static_cast<int>(neighbours_.size()) == size_; }
  void tell_other_machines(int tag) noexcept;
  void hear_other_machines();
  [[nodiscard]] bool has_left(int peer);

  // Between machines: mpi_far.cpp.
  void far(const Call& call, std::uint64_t number);
  void far_match(const Call& call, std::uint64_t number);
  void far_fold(const Reduction& reduction, const std::byte* from, const std::vector<Block>& blocks, std::byte* to,
                std::uint64_t number);
  void fold_in_rank_order(const Reduction& reduction, const std::byte* from, const std::vector<Block>& blocks, std::byte* to,
                          std::uint64_t number);
  void far_gather(Bytes all, const std::vector<Block>& blocks, std::uint64_t number);
  void gather_directly(const Call& call, std::uint64_t number);
  [[nodiscard]] BetweenMachines::Means means(std::vector<std::byte>& staging, std::uint64_t number);
  [[nodiscard]] std::vector<Block> blocks_of(std::size_t bytes, std::size_t each) const;

  const std::string name_;
  const CommunicatorOptions options_;
  int rank_ = 0, size_ = 1;
  MPI_Comm lanes_ = MPI_COMM_NULL;    // tag = lane
  MPI_Comm inner_ = MPI_COMM_NULL;    // collectives and failures
  MPI_Comm machine_ = MPI_COMM_NULL;  // the ranks that share memory with this one
  std::vector<int> neighbours_;       // their ranks
  Machines machines_;
  std::unique_ptr<MachineWindow> window_;
  std::shared_ptr<MpiPulse> pulse_;  // null: all ranks of the world are on one machine
  std::vector<int> of_world_;        // each rank's number in the world of the pulse
  std::atomic<bool> told_{false};    // true: the other machines have been told of a failure
  std::mutex hearing_;
  std::set<int> gone_;                  // ranks on other machines that have left
  std::deque<std::string> obituaries_;  // messages that are still being sent
};

}  // namespace terrace::comm
