// What an action computes: the places of its chunks in, operations on a stream out.
//
// A device may have memory of its own, so tokens and results (losses, sums of squares) live in a few pages that both reach.
//
// Owner:   an executor, or whoever times single actions. Borrows everything in Parts.
// Threads: begin() and enqueue() from the rank thread; results after the streams have passed.
// Errors:  of the layers and the math, in the streams' events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <terrace/core/device.h>
#include <terrace/core/math.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/stored_weights.h>
#include <terrace/parallel/data_groups.h>
#include <terrace/parallel/gradient_squares.h>
#include <terrace/parallel/step_map.h>

namespace terrace {

// Gives master weights their first content, or reads them: a part of one parameter. `first_element` counts in it, row-major.
//   What fills is called by all of the pool's threads at once, in no order. What reads, and what writes in programs that read
//   too, is called on the stream's thread, in ascending order within a sweep.
using WeightRange = std::function<void(const ParamSpec& param, std::uint64_t first_element, TensorView range)>;

struct StepInput {
  std::span<const std::int32_t> tokens = {}, targets = {};  // [micro_batches · N]
  double loss_scale = 1;                                    // 1 ÷ target tokens of all micro-batches
  UpdateStep update = {};                                   // of the updates in this program
  std::span<const UpdateStep> updates = {};                 // of a program that has several: each one's
  double greatest_norm = 0;  // to which verdicts clip, of gradients without the scale; 0: they do not
  // Gradient scales of groups of parameters, in place of the update's, where groups are clipped apart; empty: they are not.
  std::vector<double> group_scales = {};
  WeightRange weights = {};      // of fill and visit
  WeightRange new_weights = {};  // of fill, in programs that visit too
  TensorView logits = {};        // of decode: [1, V], written by the last layer; in the device's host_memory()
  std::int64_t position = 0;     // of decode
};

// The communicators that a rank talks on, each null where it has nobody to talk to.
struct RankGroups {
  Communicator* all = nullptr;
  Communicator* data = nullptr;      // ranks with the same layers; there also where one alone folds
  Communicator* pipeline = nullptr;  // ranks with the same micro-batches
  Communicator* copy = nullptr;      // ranks of all stages that together hold one copy of the state
  // Of an order in two directions, [stage]: all ranks that hold it, in the order in which a round's gradients are folded; null
  // where this one does not. Else empty.
  std::vector<Communicator*> directions = {};
};

class Compute {
 public:
  struct Parts {
    Device* device = nullptr;
    Stream* stream = nullptr;       // of the device
    Stream* host_stream = nullptr;  // of actions in host memory beside a device of its own: StepMap::lane_of()
    Stream* communication_stream = nullptr;
    std::vector<Stream*> message_streams = {};  // from Lane::message on
    RankGroups ranks = {};
    const StepMap* map = nullptr;
    const Optimizer* optimizer = nullptr;
  };
  explicit Compute(const Parts& parts);

  // Of a program, when nothing of the last one runs any more; `input` must live until the streams have passed its last action.
  void begin(const StepInput& input);
  // Use i of the action lies at base + offsets[i].
  void enqueue(const Action& action, std::span<const Use> uses, std::span<const std::uint64_t> offsets, std::byte* base);

  // Every rank's losses and squares become everybody's, on the communication stream, behind all that was enqueued before; of an
  // evaluation the losses alone, among the ranks of the pipeline.
  enum class Share : std::uint8_t { none, step, evaluation };
  void share_results(Share share);
  [[nodiscard]] double loss_sum() const;             // global micro-batches folded in order
  [[nodiscard]] std::vector<double> losses() const;  // of this data rank's micro-batches
  [[nodiscard]] double gradient_norm() const;        // layers folded in declared order; 0 for programs without norms
  // Of an asynchronous order, of each of the program's updates: its part of the losses, and its norm. Else empty.
  [[nodiscard]] std::vector<double> loss_sums() const;
  [[nodiscard]] std::vector<double> gradient_norms() const;
  // The same of each group of parameters that is clipped apart (0 for others), at last that of all parameters in none of them.
  // Empty where no group is.
  [[nodiscard]] std::vector<double> group_norms() const;

 private:
  class Views;
  void layer(const Action& action, const Views& views);
  void norm(const Action& action, const Views& views);
  void update(const Action& action, const Views& views, bool first);
  void update_layer(const Action& action, const Views& views, bool first);
  void exchange(const Action& action, const Views& views);
  void fill(const Action& action, const Views& views);
  void fill_segment(const Action& action, const Segment& segment, const StoredWeights& weights);
  void keep(const Action& action, const Views& views);
  void visit(const Action& action, const Views& views);
  void gather(const Action& action, const Views& views);
  void reduce(const Action& action, const Views& views);
  void reduce_directions(const Action& action, const Views& views);
  [[nodiscard]] Bytes pack(const Action& reduce, Bytes group, bool tied);
  void message(const Action& action, const Views& views);
  [[nodiscard]] bool is_tied(std::uint32_t tensor) const;
  void update_chunk(const Action& action, std::uint32_t chunk, const Views& views, bool first);
  [[nodiscard]] bool shares_squares() const;
  [[nodiscard]] Communicator& sharers_of_squares() const;
  void verdict(const Action& action);
  [[nodiscard]] UpdateStep update_step(const Action& action, bool first);
  [[nodiscard]] double gradient_scale(const ParamSpec& param) const;  // multiplies update_step()'s
  [[nodiscard]] Stored stored(Kind kind, std::byte* data) const;
  [[nodiscard]] const ParamSpec& own_param(std::uint32_t layer, std::uint32_t tensor) const;

  [[nodiscard]] Stream& stream_for(const Action& action) const;

  Parts parts_;
  std::optional<DataGroups> ranks_;  // where there is a communicator
  const StepInput* input_ = nullptr;
  std::shared_ptr<MemoryResource> memory_;
  Slab slots_;  // what the spans below are parts of
  std::span<std::int32_t> tokens_, targets_;
  std::span<double> losses_;              // a global micro-batch
  std::vector<GradientSquares> squares_;  // of each update
  struct Verdict {
    std::optional<Event> given;    // when all ranks' squares are here
    std::optional<double> factor;  // that clips
  };
  std::vector<Verdict> verdicts_;  // of each update
  bool has_norms_ = false;
};

}  // namespace terrace
