// Walks a program in program order: requests what every action needs from residency, and passes moves and computations to a
// sink. The executor's sink runs them, the simulator's times them. Both see the same decisions, because only the walk makes
// requests.
//
// Owner:   executor, simulator or planner, each with its own Residency and Belady policy, which live as long as the run.
// Threads: the owner's. Errors: DoesNotFit, naming the action; moves already given to the sink stay valid.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include <terrace/memory/eviction.h>
#include <terrace/memory/residency.h>
#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/program/program.h>

namespace terrace::walk {

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void move(const Move& move) = 0;
  // Runs the action as operation `sequence` of `lane`; use i lies at granted.offsets[i].
  virtual void compute(const Action& action, std::span<const Use> uses, const memory::Residency::Granted& granted, Lane lane,
                       std::uint64_t sequence) = 0;
  // For an action that is optional (StepMap::is_optional): true if the sink knows that it has nothing to do. The walk then
  // requests nothing for it.
  virtual bool leaves_out(const Action&) { return false; }
};

class Walk {
 public:
  Walk(const StepMap& map, memory::Residency& residency, memory::Belady& policy)
      : map_(map), residency_(residency), policy_(policy) {}

  // The first update overwrites moments that have no content yet instead of reading them. A program that runs several times in
  // a row must be the same unchanged object, because its actions' uses are found only once.
  void run(const Program& program, Sink& sink);
  // Gives every state chunk with content, except gradients, a valid copy on disk.
  void flush(Sink& sink);
  // Drops the gradients, which no update will read.
  void drop_gradients();
  [[nodiscard]] std::uint64_t reserved_bytes(Tier tier) const { return residency_.space(tier).reserved_bytes(); }

 private:
  void begin(const Program& program);
  void find_uses(const Program& program);
  void prefetch(const Action& action);
  void offload(const Action& action, Sink& sink);
  void compute(std::uint64_t at, const Action& action, Sink& sink);  // at: its position in the program
  // Steps of compute(): let uses begin without content, forget unneeded prefetches, request the uses, drop dead chunks.
  std::span<const Use> let_empty_begin(const Action& action, std::span<const Use> uses);
  void forget_prefetches(std::uint64_t at, std::span<const Use> uses, Tier tier);
  memory::Residency::Granted acquire(const Action& action, std::span<const Use> uses, Tier tier, Sink& sink);
  void drop_dead(std::uint64_t at);

  const StepMap& map_;
  memory::Residency& residency_;
  memory::Belady& policy_;
  // Moves wait until the lane's current action starts, so the prefetch depth is a distance in time.
  [[nodiscard]] Clock now(Lane lane) const { return Clock::after(lane, sequence_[index(lane)]); }

  std::array<std::uint64_t, kLanes> sequence_{};  // [lane]: number of its last action
  // A prefetch that finds no room waits here, in order, and is tried again at each action. Places, for chunks without content,
  // are tried first because the actions that fill them come sooner.
  struct Pending {
    ChunkId chunk{};
    Tier tier{};
  };
  std::deque<Pending> places_, contents_;
  void retry_prefetches(Sink& sink);
  bool retry(std::deque<Pending>& queue, Sink& sink);  // false: the first one finds no room yet
  // A posted receive keeps its place until the first use of its chunk.
  struct Awaited {
    Use use;
    Tier tier{};
    Clock after;
  };
  void release_awaited(const Use& use);
  std::vector<Awaited> awaited_;
  // The last fills keep their places for a while. The chunk filled last is needed last, so each fill would otherwise evict the
  // chunk of the fill before it and wait for that write.
  struct Filled {
    std::vector<Use> uses;
    Tier tier{};
    Clock after;
    std::uint64_t bytes = 0;
  };
  void keep_filled(std::span<const Use> uses, Tier tier, const Clock& after);
  void release_filled(std::uint64_t most_bytes);  // until at most this many are kept
  std::deque<Filled> filled_;
  std::uint64_t filled_bytes_ = 0;
  // For the current program: action i has the uses from first_use_[i] to first_use_[i + 1]; dead_ and first_dead_ likewise.
  const Program* program_ = nullptr;
  std::vector<Use> uses_;
  std::vector<ChunkId> dead_;
  std::vector<std::size_t> first_use_, first_dead_;
  std::vector<std::uint64_t> used_at_;  // [chunk]: position of the action that used it last
  Clock verdict_;                       // the last one
  std::vector<Move> moves_;
  std::vector<Use> begun_;  // an action's uses, changed by let_empty_begin()
};

}  // namespace terrace::walk
