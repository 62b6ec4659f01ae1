// Maps every action of a program to the chunks that it uses: the bridge between a model and residency.
//
// For each action, it says which chunks the action uses and how, and which chunks are dead afterwards. It also finds chunks by
// their purpose. Callers read its parts directly: layout() (where parameters lie), phases() (of the layers' calls), buffers()
// (activations), chunks() (the table of all chunks), places() (the tier and the lane of an action) and rounds() (the
// micro-batches of an update).
//
// Owner:   the trainer or planner; borrows the model. Threads: const after construction.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <terrace/memory/residency.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/recipe.h>
#include <terrace/parallel/map/action_places.h>
#include <terrace/parallel/map/activation_buffers.h>
#include <terrace/parallel/map/chunk_table.h>
#include <terrace/parallel/map/layer_phases.h>
#include <terrace/parallel/map/parameter_layout.h>
#include <terrace/parallel/mesh/mesh.h>
#include <terrace/parallel/mesh/pipeline_parallel.h>
#include <terrace/parallel/mesh/state_sharding.h>
#include <terrace/parallel/model/activations.h>
#include <terrace/parallel/model/layer.h>
#include <terrace/parallel/model/model_parts.h>
#include <terrace/parallel/model/param_group.h>
#include <terrace/parallel/model/skips.h>
#include <terrace/parallel/model/step_shape.h>
#include <terrace/parallel/model/update_place.h>
#include <terrace/parallel/program/layer_set.h>
#include <terrace/parallel/program/program.h>
#include <terrace/parallel/program/update_rounds.h>

namespace terrace {

class StepMap {
 public:
  struct Options {
    rules::Recipe recipe = {};
    StepShape shape = {};
    std::vector<LayerActivations> activations = {};  // of each layer; empty: all are kept
    UpdatePlace update = Tier::host;
    bool separate_device = false;       // the device has its own processor: work in host memory runs beside it
    bool commits = true;                // false: a chunk gets a place on disk only when it is moved there
    std::uint64_t chunk_elements = 0;   // 0: the best size is searched
    std::int64_t decode_positions = 0;  // generation: positions in layer l's cache, saved(l, 0)
    Mesh mesh = {};
    DataParallel data = {};
    mesh::PipelineParallel pipeline = {};
    std::uint32_t rank = 0;                     // of the mesh
    std::optional<LayerUnit> layer_unit = {};   // Optimizer::layer_unit(): one update action a layer
    std::vector<ParamGroup> param_groups = {};  // rates and decays of parameters by name
    std::vector<std::string> freeze = {};       // parameters that training only reads (freeze.h)
    LayerSet early = {};                        // layers that are updated early (early_updates.h)
  };
  StepMap(const Model& model, const Options& options);
  StepMap(const StepMap&) = delete;  // its parts refer to each other
  StepMap& operator=(const StepMap&) = delete;

  [[nodiscard]] std::vector<Use> uses(const Action& action) const;
  [[nodiscard]] std::vector<ChunkId> dead_after(const Action& action) const;
  // The activations that a layer's forward keeps for its backward, including the tensor of its skip if no other layer of this
  // rank keeps that.
  [[nodiscard]] std::vector<ChunkId> left_by_forward(std::uint32_t layer, std::uint32_t micro_batch) const;
  // The activations that go to the host after a forward that offloads: those of left_by_forward(), and always the tensor of its
  // skip.
  [[nodiscard]] std::vector<ChunkId> offloaded_behind(std::uint32_t layer, std::uint32_t micro_batch) const;
  // The layer's setting. The last layer never recomputes, nor does a layer that saves nothing.
  [[nodiscard]] bool recomputes(std::uint32_t layer) const { return options_.activations[layer].recompute; }
  [[nodiscard]] bool offloads(std::uint32_t layer) const { return options_.activations[layer].offload; }
  // True if this layer or one below it trains. If not, the gradient of the layer's result is not needed.
  [[nodiscard]] bool has_backward(std::uint32_t layer) const { return layer >= layout_.first_trained(); }
  // True if a layer's input outlives its forward, for the layer's backward or for a skip.
  [[nodiscard]] bool keeps_input(std::uint32_t layer) const {
    return has_backward(layer) && (layer + 1 == layers() || phases_.facts(layer).keeps_input || recomputes(layer) ||
                                   skips_.reader(layer) != model::Skips::kNone);
  }

  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] const mapping::ParameterLayout& layout() const { return layout_; }
  [[nodiscard]] const mapping::LayerPhases& phases() const { return phases_; }
  [[nodiscard]] const mapping::ChunkTable& chunks() const { return chunks_; }
  [[nodiscard]] const mapping::ActivationBuffers& buffers() const { return buffers_; }
  [[nodiscard]] const mapping::ActionPlaces& places() const { return places_; }
  [[nodiscard]] const orders::UpdateRounds& rounds() const { return rounds_; }
  [[nodiscard]] std::uint32_t layers() const { return layout_.layers(); }
  [[nodiscard]] std::uint32_t micro_batches() const { return options_.shape.micro_batches; }

  // The layers of this rank of a pipeline. If the tied layer is on another rank than the layer that declares its weights, the
  // tied layer's rank keeps a copy of them: the weights of the whole declaring layer, without states, received after every
  // update.
  [[nodiscard]] const mesh::HeldLayers& pipeline() const { return pipeline_; }
  [[nodiscard]] bool copies(std::uint32_t layer) const;
  // The rank with the copy of the layer's weights, if this rank declares them and another rank has a copy; else this rank.
  [[nodiscard]] std::uint32_t copied_to(std::uint32_t layer) const;
  // The chunks of this rank that a message sends or fills.
  [[nodiscard]] std::vector<ChunkId> carried_by(const Action& message) const;
  // True if the action is a receive that is posted early and keeps its place until the first use. Only its chunks wait for
  // another rank.
  [[nodiscard]] bool awaits(const Action& a) const { return a.op == Op::receive && a.payload != Payload::weights; }

  // The skip's part of x(k)'s gradient is added to the other part on the first rank that has both: after the input half of
  // layer k if its rank also computes the reader of the skip, else before the backward of layer k − 1, whose rank receives both
  // parts.
  [[nodiscard]] const model::Skips& skips() const { return skips_; }
  [[nodiscard]] bool adds_skip_behind(std::uint32_t layer, std::uint32_t micro_batch) const;
  [[nodiscard]] bool adds_skip_before(std::uint32_t layer, std::uint32_t micro_batch) const;

  // The chunk of this kind at a position within the layer; this rank must hold it. If the kind is sharded, the rank has only
  // its own chunks, so adjacent ids are not adjacent positions.
  [[nodiscard]] ChunkId state(ChunkKind kind, std::uint32_t layer, std::uint32_t chunk_in_layer) const;
  // True if this rank commits the chunk: it is state, and this rank owns it.
  [[nodiscard]] bool committed(ChunkId chunk) const;
  // This rank's place in the mesh, and its share of the state and of the layers.
  [[nodiscard]] const Mesh& mesh() const { return options_.mesh; }
  [[nodiscard]] std::uint32_t rank() const { return options_.rank; }
  [[nodiscard]] const StateSharding& data() const { return data_; }
  [[nodiscard]] const TensorParallel& tensor() const { return parts_.tensor; }
  [[nodiscard]] const model::ModelParts& parts() const { return parts_; }
  // True if ranks with other parts of the model also hold some of the layer's parameters, so that its gradient needs a unify
  // action.
  [[nodiscard]] bool unifies(std::uint32_t layer) const;
  // The chunks of this kind that this rank owns of a layer.
  [[nodiscard]] std::vector<std::uint32_t> owned(ChunkKind kind, std::uint32_t layer) const;
  // The chunks of a layer's gradient that are complete on this rank after all reductions; with a norm, only those in its run.
  [[nodiscard]] std::vector<std::uint32_t> final_gradients(std::uint32_t layer) const;
  [[nodiscard]] std::vector<std::uint32_t> final_gradients(const Action& norm) const;
  // How many groups of a layer are reduced: its own, and after them those of the tied gradient.
  [[nodiscard]] std::uint32_t reduced_groups(std::uint32_t layer) const;
  // The first chunk of the weights that a layer computes with, or of the gradients that its backward writes; the layer's other
  // chunks follow in the order of the layout's runs. One chunk of gathered weights, of gradients to be reduced or of visited
  // weights holds a whole group, so that the uses of a program do not grow with the number of ranks. `copy` 0: the weights that
  // updates change; else a kept weight version, which is sharded in the same way.
  [[nodiscard]] ChunkId weights(std::uint32_t layer, std::uint32_t copy = 0) const;
  [[nodiscard]] ChunkId gradients(std::uint32_t layer) const;
  // The first chunk of a run of these weights or gradients. `home`: the layer that declares the parameters.
  [[nodiscard]] ChunkId weights_at(std::uint32_t home, const memory::LayoutRun& run, std::uint32_t copy) const {
    return ChunkId(index(weights(home, copy)) + run.first / weights_each());
  }
  [[nodiscard]] ChunkId gradients_at(std::uint32_t layer, std::uint32_t home, const memory::LayoutRun& run) const {
    return ChunkId(index(home == layer ? gradients(layer) : tied_gradients()) + run.first / gradients_each());
  }
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
  // visited(): the buffer in which a visit gathers a group, if this rank does not hold all of it. shown(): whether data ranks
  // or pipeline ranks must send parts of the group into that buffer. visited_in_place(): whether no other rank must send
  // anything.
  [[nodiscard]] ChunkId visited(ChunkKind kind) const {
    return ChunkId(kind == ChunkKind::master ? visited_masters_ : visited_weights_);
  }
  [[nodiscard]] bool shown(ChunkKind kind, std::uint32_t layer) const {
    return data().shards(kind) || !pipeline().speaks_for(layer);
  }
  [[nodiscard]] bool visited_in_place(ChunkKind kind, std::uint32_t layer) const {
    return parts().ranks() == 1 && !shown(kind, layer);
  }
  // The chunk of the tied layer's own gradient at this position in the declaring layer.
  [[nodiscard]] ChunkId tied_gradient(std::uint32_t chunk_in_layer) const;
  [[nodiscard]] ChunkId update_scratch() const { return ChunkId(update_scratch_); }  // for an optimizer of whole layers
  // Update actions of a layer: one for each group of chunks, or one for all of them.
  [[nodiscard]] std::uint32_t updates_of(std::uint32_t layer) const {
    const auto groups = layout_.trained_groups(layer);
    return options_.layer_unit ? std::min(groups, 1U) : groups;
  }
  // For a layer that is updated early: the chunk that keeps the content of state(kind, layer, chunk_in_layer).
  [[nodiscard]] ChunkId previous(ChunkKind kind, std::uint32_t layer, std::uint32_t chunk_in_layer) const;
  // True if a run may leave the action out (Sink::leaves_out).
  [[nodiscard]] bool is_optional(const Action& a) const {
    if (has_phases(a.op)) return phases_.is_optional(a);
    return a.op == Op::early || a.op == Op::restore || a.op == Op::update || a.op == Op::prepare || a.op == Op::exchange;
  }
  // True if the group is frozen; frozen chunks have a weight and nothing else.
  [[nodiscard]] bool is_frozen(std::uint32_t layer, std::uint32_t of_group) const {
    return of_group >= layout_.trained_groups(layer);
  }
  // True if a visit reads this kind. Parameters that are copies of master weights are not visited.
  [[nodiscard]] bool visits(ChunkKind kind, const Action& visit) const {
    const auto& recipe = options_.recipe;
    if (kind == ChunkKind::master) return recipe.has_master() && !is_frozen(visit.layer, visit.chunk);
    return !recipe.copies_master() || is_frozen(visit.layer, visit.chunk);
  }
  // The chunks of the layer that an update action updates on this rank.
  [[nodiscard]] std::vector<std::uint32_t> updated_by(const Action& update) const;
  // For an optimizer of whole layers: layer_shape() has the layer's own tensors that train, layer_needs() what the optimizer
  // needs for the layer.
  [[nodiscard]] LayerShape layer_shape(std::uint32_t layer) const;
  [[nodiscard]] const LayerNeeds& layer_needs(std::uint32_t layer) const { return layer_needs_[layer]; }
  // True if ranks share the state of such an optimizer: its update is then split into prepare, exchange and update.
  [[nodiscard]] bool halves_updates() const { return options_.layer_unit && data().stage() >= 1; }
  // "second moment of layers.7.mlp, elements 4194304..8388607", "input of layers.3.attention, micro-batch 2".
  [[nodiscard]] std::string describe(ChunkId chunk) const;

 private:
  class Dead;  // dead_after()
  static constexpr std::uint32_t kNone = ~0U;
  std::uint32_t add_runs(std::uint32_t layer, std::uint32_t chunks, std::uint32_t each, const mapping::Chunk& chunk);
  [[nodiscard]] std::vector<std::uint32_t> updates_here() const;  // [layer]: its update actions on this rank
  void clear_idle_settings();
  void add_state();
  void add_shared();
  void add_kept();
  void add_previous();
  void demand_tied_together() const;
  void use_run(std::vector<Use>& uses, ChunkId first, std::uint32_t count, Access access) const;
  void use_phase(std::vector<Use>& uses, const Action& action) const;
  void use_weights(std::vector<Use>& uses, const Action& action) const;
  void use_gradients(std::vector<Use>& uses, const Action& backward) const;
  void use_visited(std::vector<Use>& uses, const Action& visit) const;
  void use_updated(std::vector<Use>& uses, const Action& update) const;
  [[nodiscard]] ChunkId kept(std::uint32_t layer, std::uint32_t copy) const;  // the first of kept_chunks()
  [[nodiscard]] std::uint32_t kept_chunks(std::uint32_t layer) const;
  // How many chunks of the layout lie in one chunk of the weights that a layer computes with, or of the gradients that it
  // writes.
  [[nodiscard]] std::uint32_t weights_each() const { return data().shards(ChunkKind::parameter) ? data().group() : 1; }
  [[nodiscard]] std::uint32_t gradients_each() const { return data().folds_each() ? data().group() : 1; }
  [[nodiscard]] bool is_packed_by_share(const mapping::Chunk& chunk) const;
  // How many of the layer's chunks have this kind; a frozen one has only a weight.
  [[nodiscard]] std::uint32_t chunks_with(ChunkKind kind, std::uint32_t layer) const {
    return kind == ChunkKind::parameter ? layout_.chunks_of(layer) : layout_.trained_chunks(layer);
  }
  [[nodiscard]] std::uint32_t held_position(ChunkKind kind, std::uint32_t chunk_in_layer) const;
  void use_some(std::vector<Use>& uses, ChunkId chunk, Access access) const;  // nothing for empty buffers

  [[nodiscard]] bool reads_skip_here(std::uint32_t k, std::uint32_t micro_batch) const;
  [[nodiscard]] bool is_last_sent(const Action& send) const;

  const Model& model_;
  Options options_;
  model::ModelParts parts_;
  mesh::HeldLayers pipeline_;
  StateSharding data_;
  model::Skips skips_;
  mapping::ParameterLayout layout_;
  mapping::LayerPhases phases_;
  std::vector<ChunkKind> kinds_;
  mapping::ChunkTable chunks_;
  mapping::ActivationBuffers buffers_;
  std::vector<std::uint32_t> state_first_;  // [layer · kinds + kind]
  ChunkId tied_gradient_{};
  std::vector<std::uint32_t> gathered_, buckets_;  // [layer]; empty if not used
  std::uint32_t tied_bucket_ = kNone;
  std::uint32_t visited_weights_ = kNone, visited_masters_ = kNone;
  std::vector<std::uint32_t> kept_;      // [layer]: its first copy; the others follow
  std::vector<std::uint32_t> previous_;  // [layer · kinds + kind]; empty if no layer is updated early
  std::uint32_t update_scratch_ = 0;
  std::uint64_t update_scratch_bytes_ = 0;
  std::vector<LayerNeeds> layer_needs_;  // for an optimizer of whole layers
  mapping::ActionPlaces places_;
  orders::UpdateRounds rounds_;
};

}  // namespace terrace
