// Who of a pipeline computes what, and in which order: for each rank a list of forwards, backwards and their halves.
//
// A stage is a run of consecutive layers; a placement says which rank holds it. Chimera holds every stage twice, in two
// replicas that take different micro-batches. An order (orders.h) writes a schedule, check.h proves it, simulate.h times it,
// connect.h finds its messages.
//
// Stages may be a graph, of operators that have skip connections or branches: each reads the results of the stages that are its
// inputs, all of them earlier ones, and its backward needs those of all its readers. Ranks hold any of them.
//
// An asynchronous order updates each stage within the step, every so many of its backwards, without waiting for the others; the
// step's end is where it drains. So it says which of a stage's weights a micro-batch reads, forward and backward: version v is
// what v updates have made since the step began.
//
// Pure. Owner: the planner. Threads: none. Errors: Error(Exit::usage) with the line, for text that is no schedule.
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
  std::vector<std::vector<std::uint32_t>> inputs = {};  // [stage] whose results it reads; empty: each the one before it
};
std::vector<std::vector<std::uint32_t>> chain(std::uint32_t stages);  // as inputs
Placement one_stage_a_rank(std::uint32_t ranks);
Placement looping(std::uint32_t ranks, std::uint32_t chunks);  // chunk c of rank r is stage c·ranks + r
Placement v_shape(std::uint32_t ranks);                        // stages r and 2·ranks − 1 − r on rank r
Placement both_directions(std::uint32_t ranks);                // replica 1 in reverse order of ranks

struct Schedule {
  Placement placement;
  std::uint32_t micro_batches = 0;
  std::vector<std::vector<Task>> tasks;  // [rank], in order
  std::uint32_t update_every = 0;        // micro-batches behind an update; 0: all of them, when the step has ended
  std::vector<std::vector<std::uint32_t>> reads = {};  // [stage][micro-batch] the version; empty: what the step began with
  bool forwards = false;                               // an evaluation's: it has no backwards

  // With two replicas the even micro-batches take the first one, the odd ones the second.
  [[nodiscard]] std::uint32_t replica_of(std::uint32_t micro_batch) const {
    return micro_batch % static_cast<std::uint32_t>(placement.rank_of.size());
  }
  [[nodiscard]] bool asynchronous() const { return update_every != 0; }
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t stage, std::uint32_t micro_batch) const {
    return placement.rank_of[replica_of(micro_batch)][stage];
  }
};
// How many old versions of a stage's weights are kept at once, beside those that the next update changes. [stage]
std::vector<std::uint32_t> kept_versions(const Schedule& schedule);
// Whether no micro-batch reads what the update before its own has made. Then an update may wait for all stages' gradients.
bool reads_lag_an_update(const Schedule& schedule);
std::string to_text(const Schedule& schedule);
Schedule parse_schedule(std::string_view text);

}  // namespace terrace::pipeline
