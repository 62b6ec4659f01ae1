// Turns an action and the addresses of its chunks into operations on a stream.
//
// If the device has separate memory, a program's tokens and targets are copied there when it begins, and its sums of squares
// are copied back when it ends, each in one copy. Single results (losses, routers' reports) live in pages that host and device
// both reach.
//
// Owner:   an executor, or the code that times single actions. Borrows everything in Parts.
// Threads: begin() and enqueue() from the rank thread; results may be read once the streams have finished.
// Errors:  those of the layers and the math, in the streams' events.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <terrace/core/device/device.h>
#include <terrace/core/math/math.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/stored_weights.h>
#include <terrace/parallel/map/collective.h>
#include <terrace/parallel/map/gradient_squares.h>
#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/mesh/groups.h>
#include <terrace/parallel/program/early_updates.h>
#include <terrace/parallel/program/layer_set.h>

namespace terrace {

// Writes the initial values of master weights, or reads master weights, one part of a parameter at a time. `first_element` is
// the position in the whole parameter, row-major (whole_shape() gives its shape). With tensor ranks, the parts of one rank
// follow those of another. A function for fill is called from all threads of the pool; the calls begin in ascending order. A
// function for visit, and `new_weights`, are called on the stream's thread, in ascending order within a sweep.
using WeightRange = std::function<void(const ParamSpec& param, std::uint64_t first_element, TensorView range)>;
// Initial weights. If they come from files, `announce` is called first, on one thread, with all ranges that `read` will get, in
// the order in which those calls begin, so that the source can read ahead.
struct WeightSource {
  WeightSource() = default;
  template <class Read>
  requires std::is_constructible_v<WeightRange, Read> WeightSource(Read r)
      : read(std::move(r)) {}  // a function alone is a source, too

  WeightRange read;
  std::function<void(const ParamSpec& param, std::uint64_t first_element, std::uint64_t elements)> announce;
};
// Calls `use` with the ranges of the whole parameter that a range of a tensor rank's part holds.
void each_range(const ParamSpec& param, const TensorParallel& tensor, std::uint64_t first_in_part, const TensorView& range,
                const WeightRange& use);

struct StepInput {
  std::span<const std::int32_t> tokens = {}, targets = {};  // [micro_batches · N]
  // The `begins` of Documents, for all positions of each sequence, including those of other context ranks; empty: each sequence
  // is one document. The streams read it until they have finished the program.
  std::span<const std::int32_t> document_begins = {};
  double loss_scale = 1;                     // 1 ÷ target tokens of all micro-batches
  std::span<const double> loss_scales = {};  // for a program with several updates: one for each, instead of loss_scale
  // One for each update: 1 ÷ the tokens of its micro-batches without padding; empty: all tokens are targets.
  std::span<const double> token_scales = {};
  UpdateStep update = {};   // for the updates in this program, less:
  UpdateStep pending = {};  // for those of the layers in `deferred`, which the previous step left pending
  LayerSet deferred = {};
  EarlyUpdates early = {};
  UpdateStep early_update = {};              // for early updates
  std::span<const UpdateStep> updates = {};  // for a program with several updates: one for each
  double greatest_norm = 0;                  // verdicts clip the unscaled gradients to this norm; 0: they do not clip
  // Gradient scales of the parameter groups that are clipped separately, used instead of the update's; empty: no such groups.
  std::vector<double> group_scales = {};
  WeightRange weights = {};      // for fill and visit
  WeightRange new_weights = {};  // for fill, in programs that also visit
  TensorView logits = {};        // for decode: [1, V], written by the last layer; in the device's host_memory()
  std::int64_t position = 0;     // for decode
};

// The routers' reports (core/math/routing.h) about all tokens of a step, without padding. The balance and the mean square are
// means over the layers that route.
struct RouterResult {
  double balance = 0, squares = 0, dropped = 0;
  friend bool operator==(const RouterResult&, const RouterResult&) = default;
};

class Compute {
 public:
  struct Parts {
    Device* device = nullptr;
    std::array<Stream*, kLanes> streams = {};  // [lane]; null if none of the map's programs uses it
    const mesh::Groups* groups = nullptr;      // null if nothing is exchanged
    const StepMap* map = nullptr;
    const Optimizer* optimizer = nullptr;
  };
  explicit Compute(const Parts& parts);  // gives the streams no work, so that it can fail at any point
  // Waits until the streams have finished; everything that they wait for must have been issued.
  ~Compute();
  Compute(const Compute&) = delete;
  Compute& operator=(const Compute&) = delete;

  // Starts a program; the previous one must have finished. `input` must live until the streams have finished the program.
  void begin(const StepInput& input);
  // Use i of the action lies at base + offsets[i].
  void enqueue(const Action& action, std::span<const Use> uses, std::span<const std::uint64_t> offsets, std::byte* base);

  // True if an optional phase (Phase::unless_zero) has nothing to do; valid once the stream has reached it.
  [[nodiscard]] bool has_nothing_to_do(const Action& action) const;
  // True if the input leaves an update out: it has none, or what an early update has done decides.
  [[nodiscard]] bool leaves_out(const Action& action) const;

  // Shares the losses and squares of all ranks, after everything enqueued before. An evaluation shares only the losses, among
  // the ranks with the same micro-batches.
  enum class Share : std::uint8_t { none, step, evaluation };
  void share_results(Share share);
  [[nodiscard]] double loss_sum() const;             // global micro-batches folded in order
  [[nodiscard]] std::vector<double> losses() const;  // one for each micro-batch of this data rank
  [[nodiscard]] RouterResult router() const;         // of all ranks' micro-batches, once they are shared
  [[nodiscard]] double gradient_norm() const;        // layers folded in declared order; 0 for programs without norms
  // For an asynchronous order: the part of the losses, and the norm, of each of the program's updates. Otherwise empty.
  [[nodiscard]] std::vector<double> loss_sums() const;
  [[nodiscard]] std::vector<double> gradient_norms() const;
  // The gradient norm of each parameter group that is clipped separately (0 for the other groups); the last element is the norm
  // of all remaining parameters. Empty if no group is clipped separately.
  [[nodiscard]] std::vector<double> group_norms() const;

 private:
  class Views;
  [[nodiscard]] LayerContext context_of(const Action& action, const Views& views);
  [[nodiscard]] model::Documents documents_of(std::uint32_t micro_batch) const;
  void layer(const Action& action, const Views& views);
  void backward(const Action& action, const Views& views, LayerContext& context, LayerTensors& tensors);
  void norm(const Action& action, const Views& views);
  void update(const Action& action, const Views& views, bool first);
  void update_layer(const Action& action, const Views& views, bool first);
  void fill(const Action& action, const Views& views);
  void fill_segment(const Action& action, const memory::Segment& segment, const rules::StoredWeights& weights);
  void keep(const Action& action, const Views& views);
  void keep_state(const Action& action, std::uint32_t chunk, const Views& views, ChunkUpdate& update);
  void restore(const Action& action, const Views& views);
  void visit(const Action& action, const Views& views);
  void communicate(const Action& action, const Views& views);
  void gather_packed(Communicator& ranks, Stream& stream, const mapping::Collective& gather, comm::Bytes mine, comm::Bytes all);
  [[nodiscard]] comm::Bytes pack(const Action& reduce, const mapping::Collective& collective, comm::Bytes group);
  void update_chunk(const Action& action, std::uint32_t chunk, const Views& views, bool first);
  void add_up_routers();
  [[nodiscard]] TensorView report_of(std::uint32_t layer, std::uint32_t micro_batch) const;
  void share_squares(std::uint32_t update);
  void upload_ids(const StepInput& input);
  void share(const mapping::Collective& sum, std::span<double> numbers);
  void verdict(const Action& action);
  [[nodiscard]] const UpdateStep& given_step(const Action& action) const;
  [[nodiscard]] UpdateStep update_step(const Action& action, bool first);
  [[nodiscard]] double gradient_scale(const ParamSpec& param) const;  // multiplies update_step()'s
  [[nodiscard]] Stored stored(ChunkKind kind, std::byte* data) const;

  [[nodiscard]] Stream& stream_on(Lane lane) const { return *parts_.streams.at(index(lane)); }
  [[nodiscard]] Stream& stream_for(const Action& action) const { return stream_on(parts_.map->places().lane_of(action)); }

  Parts parts_;
  const StepInput* input_ = nullptr;
  std::shared_ptr<MemoryResource> memory_;
  Slab slots_;  // the memory of the spans below
  std::span<std::int32_t> tokens_, targets_;
  Slab ids_apart_;                                 // the device's copy of both; empty if kernels read the spans
  std::span<double> losses_;                       // one for each global micro-batch
  std::span<double> router_;                       // RouterResult's sums, behind the losses; empty without routers
  std::span<double> reports_;                      // [layer][micro-batch of this rank], one after the other
  std::vector<std::size_t> report_;                // [layer]: where its reports begin
  std::vector<mapping::GradientSquares> squares_;  // one for each update
  struct Verdict {
    std::optional<Event> given;    // recorded once the squares of all ranks are here
    std::optional<double> factor;  // the clip factor
  };
  std::vector<Verdict> verdicts_;  // one for each update
  bool has_norms_ = false;
};

}  // namespace terrace
