// Maps every action of a program to the chunks that it uses: the bridge between a model and residency.
//
// It lays the model's parameters out in chunks and gives every state chunk and activation buffer its ChunkId. For each action
// it answers: the uses, their tier, the chunks that are dead afterwards, and where a tensor lies inside a run.
//
// Owner:   the trainer or planner; borrows the model. Threads: const after construction.
// Activations: x(l, m) is layer l's input for micro-batch m; saved(l, m) the tensors that its forward saves; d(l, m) the
// gradient of x(l, m); e(l, m) the part of that gradient from a layer that skips from x(l, m); carried(l, m) lives from the
// input half of a backward to its weight half; scratch(l) only inside one action.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <terrace/memory/layout.h>
#include <terrace/memory/residency.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/recipe.h>
#include <terrace/parallel/activations.h>
#include <terrace/parallel/chunk_table.h>
#include <terrace/parallel/data_parallel.h>
#include <terrace/parallel/layer.h>
#include <terrace/parallel/param_group.h>
#include <terrace/parallel/pipeline_parallel.h>
#include <terrace/parallel/program.h>
#include <terrace/parallel/skips.h>
#include <terrace/parallel/step_shape.h>
#include <terrace/parallel/update_place.h>

namespace terrace {

// A row of tensors inside one buffer, each aligned to 64 bytes.
struct Pack {
  std::vector<TensorSpec> tensors;
  std::vector<std::uint64_t> offsets;
  std::uint64_t bytes = 0;  // whole pages; 0 when there are no tensors
  explicit Pack(std::vector<TensorSpec> specs = {});
  [[nodiscard]] std::vector<TensorView> views(std::byte* base) const;
};

class StepMap {
 public:
  struct Options {
    Recipe recipe = {};
    StepShape shape = {};
    std::vector<LayerActivations> activations = {};  // of each layer; empty: all are kept
    UpdatePlace update = Tier::host;
    bool separate_device = false;       // the device has its own processor: work in host memory runs beside it
    bool commits = true;                // false: a chunk has no place on disk before it is sent there
    std::uint64_t chunk_elements = 0;   // 0: the best size is searched
    std::int64_t decode_positions = 0;  // generation: saved(l, 0) is layer l's cache of so many positions
    DataParallel data = {};
    PipelineParallel pipeline = {};
    std::optional<LayerUnit> layer_unit = {};   // Optimizer::layer_unit(): one update action a layer
    std::vector<ParamGroup> param_groups = {};  // rates and decays of parameters by name
  };
  StepMap(const Model& model, const Options& options);
  void add_to(Residency& residency) const { chunks_.add_to(residency); }

  [[nodiscard]] std::vector<Use> uses(const Action& action) const;
  [[nodiscard]] std::vector<ChunkId> dead_after(const Action& action) const;
  // The activations that a layer's forward keeps for its backward, including the tensor of its skip if no other layer of this
  // rank keeps that.
  [[nodiscard]] std::vector<ChunkId> left_by_forward(std::uint32_t layer, std::uint32_t micro_batch) const;
  // The activations that go to the host after a forward that offloads: those, and always the tensor of its skip.
  [[nodiscard]] std::vector<ChunkId> offloaded_behind(std::uint32_t layer, std::uint32_t micro_batch) const;
  // The layer's setting. The last layer never recomputes, nor does a layer that saves nothing.
  [[nodiscard]] bool recomputes(std::uint32_t layer) const { return options_.activations[layer].recompute; }
  [[nodiscard]] bool offloads(std::uint32_t layer) const { return options_.activations[layer].offload; }
  // Whether a layer's input outlives its forward, for the layer's backward or for a skip.
  [[nodiscard]] bool keeps_input(std::uint32_t layer) const {
    return layer + 1 == layers() || model_.layers[layer]->keeps_input() || recomputes(layer) ||
           skips_.reader(layer) != Skips::kNone;
  }
  // offloaded_by(): the traffic of the activations that the layers of a step offload and read again, if the device has room for
  // all the rest. moves_state(): whether a step with traffic `moved` moved more than that.
  [[nodiscard]] Traffic offloaded_by(const Program& step) const;
  [[nodiscard]] bool moves_state(const Program& step, const Traffic& moved) const;
  [[nodiscard]] Tier tier_of(const Action& action) const;  // where the uses are acquired
  [[nodiscard]] Lane lane_of(const Action& action) const;  // the lane that runs it
  [[nodiscard]] Lane lane_of(Tier tier) const;             // the lane that computes in that memory

  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] const Layout& layout() const { return layout_; }
  [[nodiscard]] std::uint32_t layers() const { return layout_.layers(); }
  [[nodiscard]] const std::vector<ParamSpec>& params(std::uint32_t layer) const { return params_[layer]; }

  // The layers of this rank of a pipeline. If the tied layer is on another rank than the layer that declares its weights, the
  // tied layer's rank keeps a copy of them: the weights of the whole declaring layer, without states, received after every
  // update.
  [[nodiscard]] const PipelineParallel& pipeline() const { return options_.pipeline; }
  [[nodiscard]] bool holds(std::uint32_t layer) const { return pipeline().holds(layer); }
  [[nodiscard]] bool copies(std::uint32_t layer) const { return layer == tied_home_ && holds(tied_layer_) && !holds(layer); }
  // The rank with the copy of the layer's weights, if this rank declares them and another rank has a copy; else this rank.
  [[nodiscard]] std::uint32_t copied_to(std::uint32_t layer) const {
    return layer == tied_home_ && holds(layer) && !holds(tied_layer_) ? pipeline().holder(tied_layer_) : pipeline().rank;
  }
  // For orders in which two ranks compute the same layer, with different micro-batches: whether gradients are summed between
  // the replicas, and the round of a micro-batch.
  [[nodiscard]] bool reduces_between_replicas() const { return pipeline().replicas() > 1; }
  [[nodiscard]] std::uint32_t round_of(std::uint32_t micro_batch) const { return micro_batch / pipeline().replicas(); }
  // How many micro-batches each update of a layer covers, and how many updates the program has; whether a micro-batch's
  // gradient is the first, or the last, of its update on this rank.
  [[nodiscard]] std::uint32_t update_every() const {
    return pipeline().asynchronous() ? pipeline().update_every : micro_batches();
  }
  [[nodiscard]] std::uint32_t updates_a_step() const { return micro_batches() / update_every(); }
  [[nodiscard]] bool begins_gradient(std::uint32_t micro_batch) const {
    return micro_batch % update_every() < pipeline().replicas();
  }
  [[nodiscard]] bool ends_gradient(std::uint32_t micro_batch) const {
    return micro_batch % update_every() + pipeline().replicas() >= update_every();
  }
  [[nodiscard]] std::uint32_t message_lanes() const { return static_cast<std::uint32_t>(peer_lanes_.size()); }
  // The chunks of this rank that a message sends or fills.
  [[nodiscard]] std::vector<ChunkId> carried_by(const Action& message) const;
  // Whether the receive is posted early and keeps its place until the first use. Only these chunks wait for another rank.
  [[nodiscard]] bool awaits(const Action& a) const { return a.op == Op::receive && a.payload != Payload::weights; }

  // The skip's part of x(k)'s gradient is added to the other part on the first rank that has both: after the input half of
  // layer k if its rank also computes the reader of the skip, else before the backward of layer k − 1, whose rank receives both
  // parts.
  [[nodiscard]] const Skips& skips() const { return skips_; }
  [[nodiscard]] bool adds_skip_behind(std::uint32_t layer, std::uint32_t micro_batch) const;
  [[nodiscard]] bool adds_skip_before(std::uint32_t layer, std::uint32_t micro_batch) const;

  // Where a layer's parameter is stored: in its own run, or in the run of the layer that it is tied to.
  struct Home {
    std::uint32_t layer = 0, tensor = 0;  // the declaring layer and the tensor's position in its layout
  };
  [[nodiscard]] Home home(std::uint32_t layer, std::uint32_t param) const { return homes_[layer][param]; }

  // A chunk of a layer's run that this rank holds. If the kind is sharded, it is not part of a contiguous run.
  [[nodiscard]] ChunkId state(Kind kind, std::uint32_t layer, std::uint32_t chunk_in_layer) const;
  // Whether this rank commits the chunk: it is state, and this rank owns it.
  [[nodiscard]] bool committed(ChunkId chunk) const;
  // A layer's chunks in groups (data_parallel.h).
  [[nodiscard]] const DataParallel& data() const { return options_.data; }
  [[nodiscard]] std::uint32_t groups_of(std::uint32_t layer) const { return layout_.chunks_of(layer) / data().group(); }
  [[nodiscard]] std::uint32_t own(std::uint32_t group) const { return group * data().group() + data().place(); }
  [[nodiscard]] std::vector<std::uint32_t> chunks_of(std::uint32_t group) const;   // of all ranks, within the layer
  [[nodiscard]] std::vector<std::uint32_t> updated_in(std::uint32_t group) const;  // by this rank
  // The chunks of a layer's gradient that are complete on this rank after all reductions.
  [[nodiscard]] std::vector<std::uint32_t> final_gradients(std::uint32_t layer) const;
  // How many groups of a layer are reduced: its own, and after them those of the tied gradient.
  [[nodiscard]] std::uint32_t reduced_groups(std::uint32_t layer) const;
  // First chunks of the runs that hold all of a layer: the weights that it computes with, and the gradients that its backward
  // writes. For chunks that exist only for a short time on every rank (gathered weights, gradients to be reduced, visited
  // weights), one chunk holds a whole group, so that the uses of a program do not grow with the number of ranks. `copy` 0: the
  // weights that updates change; else a kept weight version, which is sharded in the same way.
  [[nodiscard]] ChunkId weights(std::uint32_t layer, std::uint32_t copy = 0) const;
  [[nodiscard]] ChunkId gradients(std::uint32_t layer) const;
  [[nodiscard]] ChunkId tied_gradients() const;
  [[nodiscard]] ChunkId gathered(std::uint32_t layer, std::uint32_t group) const;  // the weights that the layer computes with
  [[nodiscard]] ChunkId gathered_from(const Action& gather) const;                 // this rank's shard of them
  // Source and destination chunks of a keep action.
  [[nodiscard]] std::vector<std::pair<ChunkId, ChunkId>> kept_by(const Action& keep) const;
  // The first chunk of a group that a reduction sums; `into` receives this rank's share of the sum.
  struct Reduced {
    ChunkId first{}, into{};
    bool tied = false;
  };
  [[nodiscard]] Reduced reduced(std::uint32_t layer, std::uint32_t group) const;
  // visited(): the buffer in which a visit gathers a group, if this rank does not hold all of it. shown(): whether the group is
  // gathered for a visit.
  [[nodiscard]] ChunkId visited(Kind kind) const { return ChunkId(kind == Kind::master ? visited_masters_ : visited_weights_); }
  [[nodiscard]] bool shown(Kind kind, std::uint32_t layer) const { return data().shards(kind) || !speaks_for(layer); }
  // Whether this rank does the work of a layer that only one of its ranks may do.
  [[nodiscard]] bool speaks_for(std::uint32_t layer) const { return pipeline().holder(layer) == pipeline().rank; }

  [[nodiscard]] bool has_tied_gradient() const { return tied_layer_ != kNone; }
  [[nodiscard]] std::uint32_t tied_layer() const { return tied_layer_; }  // the layer that reads another's weight
  [[nodiscard]] std::uint32_t tied_home() const { return tied_home_; }    // the layer that declares it
  // The tied layer's own gradient has the layout of the declaring layer's run. adds_tied(): whether it reaches this chunk.
  // tied_gradient(): its chunk at this position.
  [[nodiscard]] bool adds_tied(std::uint32_t layer, std::uint32_t chunk_in_layer) const {
    return layer == tied_home_ && chunk_in_layer < tied_chunks_;
  }
  [[nodiscard]] ChunkId tied_gradient(std::uint32_t chunk_in_layer) const;
  [[nodiscard]] std::uint32_t tied_groups() const { return tied_chunks_ / data().group(); }
  [[nodiscard]] ChunkId x(std::uint32_t layer, std::uint32_t m) const { return ChunkId(x_ + layer * micro_batches() + m); }
  [[nodiscard]] ChunkId d(std::uint32_t layer, std::uint32_t m) const { return ChunkId(d_ + layer * micro_batches() + m); }
  [[nodiscard]] ChunkId e(std::uint32_t layer, std::uint32_t m) const { return ChunkId(skipped_.at(layer) + m); }
  [[nodiscard]] ChunkId saved(std::uint32_t layer, std::uint32_t m) const {
    return ChunkId(saved_ + layer * micro_batches() + m);
  }
  [[nodiscard]] ChunkId carried(std::uint32_t layer, std::uint32_t m) const {
    return ChunkId(pipeline().halves ? carried_ + layer * micro_batches() + m : carried_ + layer);
  }
  [[nodiscard]] ChunkId scratch(std::uint32_t layer) const { return ChunkId(scratch_ + layer); }
  [[nodiscard]] ChunkId update_scratch() const { return ChunkId(update_scratch_); }  // for an optimizer of whole layers
  // Update actions of a layer: one for each group of chunks, or one for all of them.
  [[nodiscard]] std::uint32_t updates_of(std::uint32_t layer) const { return options_.layer_unit ? 1 : groups_of(layer); }
  // The chunks of the layer that an update action updates here.
  [[nodiscard]] std::vector<std::uint32_t> updated_by(const Action& update) const;
  // For an optimizer of whole layers: the layer's own tensors, and what the optimizer needs for a layer that this rank holds.
  [[nodiscard]] LayerShape layer_shape(std::uint32_t layer) const;
  [[nodiscard]] const LayerNeeds& layer_needs(std::uint32_t layer) const { return layer_needs_[layer]; }
  // If ranks share the state of such an optimizer, its update is split into prepare, exchange and update.
  [[nodiscard]] bool halves_updates() const { return options_.layer_unit && data().stage() >= 1; }
  [[nodiscard]] ChunkId spare() const { return ChunkId(spare_); }  // the output that a recomputation discards
  [[nodiscard]] const Pack& saved_pack(std::uint32_t layer) const { return saved_packs_[layer]; }
  [[nodiscard]] const Pack& carried_pack(std::uint32_t layer) const { return carried_packs_[layer]; }
  [[nodiscard]] std::uint32_t chunks() const { return chunks_.size(); }
  [[nodiscard]] std::uint64_t chunk_bytes(ChunkId chunk) const { return chunks_[chunk].bytes; }
  [[nodiscard]] Kind chunk_kind(ChunkId chunk) const { return chunks_[chunk].kind; }
  // Whether the chunk is the first of a run that is contiguous on the device.
  [[nodiscard]] bool leads_run(ChunkId chunk) const { return chunks_.leads_run(chunk); }
  // "second moment of layers.7.mlp, elements 4194304..8388607", "input of layers.3.attention, micro-batch 2".
  [[nodiscard]] std::string describe(ChunkId chunk) const;
  [[nodiscard]] std::uint32_t micro_batches() const { return options_.shape.micro_batches; }
  [[nodiscard]] std::uint64_t state_bytes() const { return chunks_.state_bytes(); }  // of all kinds
  [[nodiscard]] std::uint64_t parameter_count() const { return layout_.tensor_elements(); }
  // The largest sum of bytes that one action uses in a tier: the smallest budget that could ever be legal there.
  [[nodiscard]] std::uint64_t largest_use(const Program& program, Tier tier, Action* which = nullptr) const;

 private:
  static constexpr std::uint32_t kNone = ~0U;
  std::uint32_t add_run(std::uint32_t count, const Chunk& chunk);
  void add_state();
  void add_activations();
  void add_shared();
  void add_kept();
  void add_skips();
  void add_peer_lanes();
  void demand_tied_together() const;
  [[nodiscard]] bool has_input(std::uint32_t layer) const;  // this rank computes the layer, or the one before it
  void use_run(std::vector<Use>& uses, ChunkId first, std::uint32_t count, Access access) const;
  void use_weights(std::vector<Use>& uses, std::uint32_t layer, std::uint32_t copy) const;
  void use_gradients(std::vector<Use>& uses, std::uint32_t layer, Access access) const;
  void use_visited(std::vector<Use>& uses, const Action& visit) const;
  void use_updated(std::vector<Use>& uses, const Action& update) const;
  [[nodiscard]] ChunkId kept(std::uint32_t layer, std::uint32_t copy) const;  // the first of kept_chunks()
  [[nodiscard]] std::uint32_t kept_chunks(std::uint32_t layer) const;
  [[nodiscard]] bool is_packed_by_share(const Chunk& chunk) const;
  [[nodiscard]] std::uint32_t held_position(Kind kind, std::uint32_t chunk_in_layer) const;
  void use_some(std::vector<Use>& uses, ChunkId chunk, Access access) const;  // nothing for empty buffers

  [[nodiscard]] bool reads_skip_here(std::uint32_t k, std::uint32_t micro_batch) const;
  [[nodiscard]] bool is_last_sent(const Action& send) const;

  const Model& model_;
  Options options_;
  Skips skips_;
  std::vector<std::vector<ParamSpec>> params_;
  std::vector<std::vector<Home>> homes_;
  Layout layout_;
  std::vector<Kind> kinds_;
  ChunkTable chunks_;
  std::vector<Pack> saved_packs_, carried_packs_;
  std::uint32_t tied_layer_ = kNone, tied_home_ = kNone;
  std::vector<std::uint32_t> state_first_;   // a layer, a kind
  std::vector<std::uint32_t> first_update_;  // a layer: the number of its first update
  ChunkId tied_gradient_{};
  std::uint32_t tied_chunks_ = 0;                  // chunks of the run whose layout the tied gradient has
  std::vector<std::uint32_t> gathered_, buckets_;  // [layer]; empty if not used
  std::uint32_t tied_bucket_ = kNone;
  std::uint32_t visited_weights_ = kNone, visited_masters_ = kNone;
  std::vector<std::uint32_t> kept_;     // [layer]: its first copy; the others follow
  std::vector<std::uint32_t> skipped_;  // [layer]: its e(l, 0); empty without skips
  std::uint32_t x_ = 0, d_ = 0, saved_ = 0, carried_ = 0, scratch_ = 0, spare_ = 0, update_scratch_ = 0;
  std::uint64_t update_scratch_bytes_ = 0;
  std::vector<LayerNeeds> layer_needs_;  // for an optimizer of whole layers
  struct PeerLane {
    Op op{};
    Payload payload{};
    std::uint32_t peer = 0;
    friend bool operator==(const PeerLane&, const PeerLane&) = default;
  };
  std::vector<PeerLane> peer_lanes_;  // Lane::message and following
};

}  // namespace terrace
