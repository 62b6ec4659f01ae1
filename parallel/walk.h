// One walk over a program in program order: asks residency for what every action needs, and hands moves and computations to
// a sink. The executor's sink carries them out, the simulator's adds up their time, the planner's only counts: all three
// see the same decisions because this is the only place that asks for them.
//
// Owner:   executor, simulator or planner, beside a Residency and a Belady policy of its own that live as long as the run.
// Threads: the owner's. Errors: DoesNotFit, naming the action; moves already given to the sink stay valid.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include <terrace/memory/eviction.h>
#include <terrace/memory/residency.h>
#include <terrace/parallel/program.h>
#include <terrace/parallel/step_map.h>

namespace terrace {

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void move(const Move& move) = 0;
  // The action with its uses, granted at `granted.offsets`; it is operation `sequence` of `lane`.
  virtual void compute(const Action& action, std::span<const Use> uses, const Residency::Granted& granted, Lane lane,
                       std::uint64_t sequence) = 0;
};

class Walk {
 public:
  Walk(const StepMap& map, Residency& residency, Belady& policy) : map_(map), residency_(residency), policy_(policy) {}

  // Moments that hold nothing yet are overwritten by their update instead of being read.
  void run(const Program& program, Sink& sink);
  // Every chunk of state with content (gradients apart) gets a valid copy on disk.
  void flush(Sink& sink);
  // Gradients that no update will read hold nothing any more.
  void drop_gradients();
  [[nodiscard]] std::uint64_t reserved_bytes(Tier tier) const { return residency_.space(tier).reserved_bytes(); }

 private:
  void set_policy(const Program& program);
  void offload(const Action& action, Sink& sink);

  const StepMap& map_;
  Residency& residency_;
  Belady& policy_;
  // Not before the lane's action at hand starts: this is what makes "depth" a distance in time.
  [[nodiscard]] Clock now(Lane lane) const { return Clock::after(lane, sequence_[index(lane)]); }

  std::array<std::uint64_t, kLanes> sequence_{};  // of the lanes that run actions: their last one's
  // A prefetch that finds no room waits here, in order, and is tried again beside each action: places first, of chunks that
  // have no content yet, because what takes them comes sooner.
  struct Pending {
    ChunkId chunk{};
    Tier tier{};
  };
  std::deque<Pending> places_, contents_;
  void retry_prefetches(Sink& sink);
  bool retry(std::deque<Pending>& queue, Sink& sink);  // false: the first one finds no room yet
  // What another rank was asked for keeps its place until the first use.
  struct Awaited {
    Use use;
    Tier tier{};
    Clock after;
  };
  void release_awaited(const Use& use);
  std::vector<Awaited> awaited_;
  std::vector<Move> moves_;
};

}  // namespace terrace
