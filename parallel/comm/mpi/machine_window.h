// Collectives between the processes of one machine, through memory that they share (MPI_Win_allocate_shared). A call is cut
// into pieces that stay in the cache: each rank writes the bytes that the others need into its own window, and every rank folds
// or copies directly from the other windows into its result.
//
// Owner:   a transport. Freed if all ranks left without failure, else at the end of the process.
// Threads: run() one at a time; begin(), end() and the checks of waiting threads from any.
// Errors:  a failure is written into the shared memory: every rank's wait ends with it within a few milliseconds.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/parallel/comm/call.h>
#include <terrace/parallel/comm/positions.h>

namespace terrace::comm {

class MachineWindow {
 public:
  // Collective over `machine`. `members`: each rank's number in the communicator that error messages name.
  MachineWindow(MPI_Comm machine, std::string name, std::vector<int> members, std::chrono::milliseconds time_limit);

  void run(const Call& call);                                        // the window's ranks are all ranks of the call
  void match(const Call& call) { run_pieces(call, 1, {}, {}, {}); }  // waits for all ranks; checks that their calls match
  void begin(std::uint64_t number, const Call& call);
  void end(std::uint64_t number);
  // Checks a wait for the member `rank` that began at `since`: throws if any rank failed, if `rank` left or died, if its
  // process has been stopped (SIGSTOP, a debugger) for the time limit, or if a call that is not patient waited too long.
  // `left`: true if `rank` had already left when the caller last checked what it waits for.
  void check(int rank, bool left, std::uint64_t number, std::chrono::steady_clock::time_point since);
  [[nodiscard]] bool has_left(int rank) const;  // for ranks of this machine
  [[nodiscard]] bool is_patient(std::uint64_t number) const { return number == patient_; }
  // `on_another_machine`: `why` is the failure() of ranks there.
  void fail(const std::string& why, bool on_another_machine = false) noexcept;
  // Tells the others that this rank leaves. Returns true if all ranks leave within a short time: then collective clean-up
  // cannot hang.
  bool leave() noexcept;
  [[nodiscard]] bool failed() const;
  [[nodiscard]] std::string failure() const;
  // True if a process of this job is known to be dead: MPI's own calls may then wait for it forever. Static, as MPI is.
  [[nodiscard]] static bool a_process_died();
  [[nodiscard]] static bool a_rank_failed();  // of this job, for any reason that is known here
  [[nodiscard]] std::string positions() const;

 private:
  struct Control;
  struct Group;
  using Piece = std::function<void(std::int64_t)>;

  // A rank may be some pieces ahead of the slowest, and all of its slots together stay in the cache.
  static constexpr std::uint64_t kSlots = 4;
  static constexpr std::size_t kSlotBytes = 128 * kKiB;
  static constexpr std::size_t kLine = 64;  // bytes of a cache line

  // machine_window.cpp: memory, waiting, failures.
  [[nodiscard]] std::size_t place_of(int member) const;  // index in members_; the number of members if not found
  void run_pieces(const Call& call, std::int64_t count, const Piece& write, const Piece& settle, const Piece& read);
  void wait_all(std::atomic<std::uint64_t> Control::*progress, std::uint64_t value);
  void advance(std::atomic<std::uint64_t>& progress, std::uint64_t value);
  void ring();  // wakes the ranks that sleep until something changes
  void check_signatures(std::uint64_t mine, std::uint64_t piece);
  void publish_position();
  std::chrono::nanoseconds stopped_for(std::size_t member);
  [[nodiscard]] std::byte* slot(std::size_t rank, std::uint64_t piece) const;

  // machine_collectives.cpp: what each rank writes, folds and reads.
  void gather(const Call& call);
  void reduce_scatter(const Call& call);
  void all_reduce(const Call& call);
  void all_reduce_of_two(const Call& call);
  void reduce(const Call& call);
  void broadcast(const Call& call);

  const MPI_Comm machine_;
  const std::string name_;
  const std::vector<int> members_;
  const std::chrono::milliseconds time_limit_;
  const std::chrono::nanoseconds yielding_;  // how long a waiting rank yields before it sleeps
  MPI_Win window_ = MPI_WIN_NULL;
  std::size_t rank_ = 0;
  std::vector<Control*> controls_;
  Group* group_ = nullptr;
  bool sees_processes_ = false;
  // How long this rank has seen each process stopped, and when it last looked.
  struct Stopped {
    std::chrono::steady_clock::time_point looked;
    std::chrono::nanoseconds time{};
  };
  std::vector<Stopped> stopped_;
  std::uint64_t piece_ = 0;   // pieces of all calls before; the same on all ranks
  mutable std::mutex mutex_;  // guards log_ and stopped_
  PositionLog log_;
  std::uint64_t number_ = 0;               // of the collective under way
  std::atomic<std::uint64_t> patient_{0};  // the number of the collective under way if it is patient, else 0
};

}  // namespace terrace::comm
