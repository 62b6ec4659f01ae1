// The schedule of a pipeline: for each rank an ordered list of forwards, backwards and halves of backwards.
//
// A stage is a run of consecutive layers; a placement says which rank holds it. Chimera holds every stage twice, in two
// replicas that take different micro-batches. An order (orders.h) writes a schedule, check.h proves it, simulate.h times it,
// connect.h finds its messages.
//
// Stages may form a graph, with skip connections or branches: each reads the results of its input stages, which are all
// earlier, and its backward needs the backwards of all its readers. A rank may hold any stages.
//
// An asynchronous order updates each stage several times within the step, without waiting for the other stages; at the end of
// the step, it drains. So the schedule says which weight version of its stage a micro-batch reads, forward and backward:
// version v is the weights after v updates since the step began.
//
// Pure. Owner: the planner. Threads: none. Errors: Error(ErrorKind::refused) with the line, for text that is not a schedule.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::pipeline {

enum class Work : std::uint8_t { forward, backward, input, weight };  // backward: both halves, input and weight, at once

struct Task {
  Work work = Work::forward;
  std::uint32_t stage = 0, micro_batch = 0;
  friend bool operator==(const Task&, const Task&) = default;
};
std::string to_text(const Task& task);  // "F2.17": the forward of stage 2 for micro-batch 17; B, I and W likewise

struct Placement {
  std::uint32_t ranks = 1, stages = 1;
  std::vector<std::vector<std::uint32_t>> rank_of;      // [replica][stage]
  std::vector<std::vector<std::uint32_t>> inputs = {};  // [stage] the stages that it reads; empty: a chain()
};
std::vector<std::vector<std::uint32_t>> chain(std::uint32_t stages);  // as `inputs`: each stage reads the one before it
Placement one_stage_a_rank(std::uint32_t ranks);
Placement looping(std::uint32_t ranks, std::uint32_t chunks);  // chunk c of rank r is stage c·ranks + r
Placement v_shape(std::uint32_t ranks);                        // stages r and 2·ranks − 1 − r on rank r
Placement both_directions(std::uint32_t ranks);                // replica 1 in reverse order of ranks

struct Schedule {
  Placement placement;
  std::uint32_t micro_batches = 0;
  std::vector<std::vector<Task>> tasks;  // [rank], in order
  std::uint32_t update_every = 0;        // micro-batches of an update; 0: one update of all of them after the step
  std::vector<std::vector<std::uint32_t>> reads =
      {};                 // [stage][micro-batch] the weight version; empty: that of the step's start
  bool forwards = false;  // an evaluation, without backwards

  // With two replicas the even micro-batches run on the first one, the odd ones on the second.
  [[nodiscard]] std::uint32_t replica_of(std::uint32_t micro_batch) const {
    return micro_batch % static_cast<std::uint32_t>(placement.rank_of.size());
  }
  [[nodiscard]] bool asynchronous() const { return update_every != 0; }
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t stage, std::uint32_t micro_batch) const {
    return placement.rank_of[replica_of(micro_batch)][stage];
  }
};
// [stage] The most old weight versions that are kept at once, in addition to the one that the next update changes.
std::vector<std::uint32_t> kept_versions(const Schedule& schedule);
// True if no micro-batch reads the result of the update just before its own, so that an update may wait for all stages'
// gradients.
bool reads_lag_an_update(const Schedule& schedule);
std::string to_text(const Schedule& schedule);
Schedule parse_schedule(std::string_view text);

}  // namespace terrace::pipeline
