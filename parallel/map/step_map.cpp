#include <terrace/parallel/map/step_map.h>

#include <terrace/parallel/model/param_tiles.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include <terrace/core/base/refused_setting.h>
#include <terrace/core/math/philox.h>

namespace terrace {
namespace {

orders::UpdateRounds rounds_of(const mesh::PipelineParallel& pipeline, std::uint32_t micro_batches) {
  return {.micro_batches = micro_batches,
          .every = pipeline.asynchronous() ? pipeline.update_every : micro_batches,
          .replicas = pipeline.replicas()};
}

}  // namespace

StepMap::StepMap(const Model& model, const Options& options)
    : model_(model),
      options_(options),
      parts_{model.place.tensor(), model.place.expert()},
      pipeline_(options.pipeline, options.mesh.coordinate(options.rank, Axis::pp)),
      data_(options.data, options.mesh, options.rank, options.pipeline.replicas() > 1),
      skips_(model),
      layout_(model, options.param_groups, options.chunk_elements, data_.group(), options.freeze),
      phases_(model, options.shape.batch, layout_),
      kinds_(options.recipe.kinds()),
      buffers_(model, phases_, skips_, pipeline_, options.shape, options.decode_positions),
      places_(options.update, options.separate_device, phases_, updates_here(),
              mapping::MessageLanes(pipeline_, skips_, layout_)),
      rounds_(rounds_of(options.pipeline, options.shape.micro_batches)) {
  if (options.mesh.size(kPartAxes) != parts_.ranks())
    throw std::logic_error(
        fmt::format("StepMap: the model is one of {} parts, and the mesh is {}", parts_.ranks(), to_string(options.mesh)));
  if (layout_.has_tied()) demand_tied_together();
  clear_idle_settings();
  add_state();
  buffers_.add_to(chunks_);
  if (update_scratch_bytes_ != 0)
    update_scratch_ = chunks_.add(1, {.bytes = update_scratch_bytes_,
                                      .kind = ChunkKind::activation,
                                      .end = memory::End::high,
                                      .role = mapping::Role::update_scratch});
  if (data().reduces() || pipeline().ranks > 1 || parts().ranks() > 1) add_shared();
  if (pipeline().asynchronous()) add_kept();
  add_previous();
  if (skips_.any()) buffers_.add_skips_to(chunks_);
}

// Clears settings without effect: the last layer's backward follows its forward at once, and some layers save nothing.
void StepMap::clear_idle_settings() {
  auto& each = options_.activations;
  each.resize(layers());
  each.back() = {};
  for (std::uint32_t l = 0; l < layers(); ++l) each[l].recompute &= buffers_.saved_pack(l).bytes != 0;
}

std::vector<std::uint32_t> StepMap::updates_here() const {
  std::vector<std::uint32_t> updates;
  for (std::uint32_t l = 0; l < layers(); ++l) updates.push_back(pipeline().holds(l) ? updates_of(l) : 0);
  return updates;
}

// A copy of tied weights is only supported on one rank, which computes all backwards of the tied layer. So in an order in two
// directions, the declaring and the tied layer must be on the same ranks, which need no copy.
void StepMap::demand_tied_together() const {
  if (pipeline().replicas() == 1) return;
  std::set<std::uint32_t> home_ranks, tied_ranks;
  for (const auto& of_replica : pipeline().rank_of) {
    home_ranks.insert(of_replica[layout_.tied_home()]);
    tied_ranks.insert(of_replica[layout_.tied_layer()]);
  }
  if (home_ranks == tied_ranks) return;
  throw RefusedSetting(
      "untied",
      fmt::format("{} reads a weight of {}: in an order in two directions both must be on the same ranks\n  put one into "
                  "the first stage and the other into the last, or give `untied`",
                  model_.layers[layout_.tied_layer()]->name(), model_.layers[layout_.tied_home()]->name()));
}

// Chunk i of every kind covers the same elements.
void StepMap::add_state() {
  auto& recipe = options_.recipe;
  if (options_.layer_unit && options_.layer_unit->second_moment != Packed::none)
    recipe.second_moment = recipe.compute == DType::fp64 ? rules::Format::packed64 : rules::Format::packed;
  const auto bytes_of = [&](ChunkKind kind) { return recipe.chunk_bytes(kind, layout_.chunk_elements()); };
  const auto each = [&](ChunkKind kind) {
    return data().shards(kind) ? data().group() : 1;
  };  // layout chunks in one chunk here
  layer_needs_.resize(layers());
  for (std::uint32_t l = 0; l < layers(); ++l) {
    if (!pipeline().holds(l)) {
      for (const auto kind : kinds_)
        state_first_.push_back(add_runs(l, copies(l) && kind == ChunkKind::parameter ? layout_.chunks_of(l) : 0, each(kind),
                                        {.bytes = bytes_of(kind), .kind = kind, .layer = l}));
      continue;
    }
    auto& needs = layer_needs_[l];
    const auto trained = layout_.trained_chunks(l);
    if (options_.layer_unit && trained != 0) needs = options_.layer_unit->needs(layer_shape(l));
    update_scratch_bytes_ = std::max(update_scratch_bytes_, round_up(needs.scratch_bytes, kPageBytes));
    // The numbers of a packed state are spread over this rank's chunks of the layer.
    const auto own = std::max<std::uint64_t>(1, trained / each(ChunkKind::second_moment));
    const auto packed = std::max<std::uint64_t>(1, ceil_div(needs.packed_numbers, own));
    for (const auto kind : kinds_) {
      const auto bytes = rules::is_packed(recipe.format_of(kind)) ? recipe.chunk_bytes(kind, packed) : bytes_of(kind);
      state_first_.push_back(add_runs(l, chunks_with(kind, l), each(kind), {.bytes = bytes, .kind = kind, .layer = l}));
    }
  }
  if (!layout_.has_tied()) return;
  const auto tied = layout_.tied_layer();
  const bool here = pipeline().holds(tied) || pipeline().holds(layout_.tied_home());
  tied_gradient_ = ChunkId(add_runs(layout_.tied_home(), here ? layout_.tied_chunks() : 0, each(ChunkKind::gradient),
                                    {.bytes = bytes_of(ChunkKind::gradient),
                                     .kind = ChunkKind::gradient,
                                     .layer = tied,
                                     .role = mapping::Role::tied_gradient}));
}

// Adds chunks that exist only for a short time on every rank, and are shared with other ranks.
void StepMap::add_shared() {
  const auto add = [&](mapping::Role role, ChunkKind kind, std::uint32_t layer, std::uint32_t home, std::uint32_t chunks) {
    const auto bytes = options_.recipe.chunk_bytes(kind, layout_.chunk_elements()) * data().group();
    return add_runs(home, chunks, data().group(),
                    {.bytes = bytes, .kind = ChunkKind::activation, .end = memory::End::high, .layer = layer, .role = role});
  };
  for (std::uint32_t l = 0; l < layers(); ++l) {
    const auto here = pipeline().holds(l) ? layout_.chunks_of(l) : 0;
    if (data().shards(ChunkKind::parameter))
      gathered_.push_back(add(mapping::Role::gathered, ChunkKind::parameter, l, l, copies(l) ? layout_.chunks_of(l) : here));
    if (data().folds_each())
      buckets_.push_back(add(mapping::Role::bucket, ChunkKind::gradient, l, l, std::min(here, layout_.trained_chunks(l))));
  }
  if (data().folds_each() && layout_.has_tied())
    tied_bucket_ = add(mapping::Role::tied_bucket, ChunkKind::gradient, layout_.tied_layer(), layout_.tied_home(),
                       pipeline().holds(layout_.tied_layer()) ? layout_.tied_chunks() : 0);
  const auto add_visited = [&](ChunkKind kind) {
    if (!data().shards(kind) && pipeline().ranks == 1 && parts().ranks() == 1) return kNone;
    const auto group = options_.recipe.chunk_bytes(kind, layout_.chunk_elements()) * data().group();
    return chunks_.add(1, {.bytes = group * parts().ranks(),
                           .kind = ChunkKind::activation,
                           .end = memory::End::high,
                           .role = mapping::Role::visited});
  };
  visited_weights_ = add_visited(ChunkKind::parameter);
  if (options_.recipe.has_master()) visited_masters_ = add_visited(ChunkKind::master);
}

// Adds the kept weight versions. Like gathered weights, they exist only within a step and are not committed.
void StepMap::add_kept() {
  const auto bytes = options_.recipe.chunk_bytes(ChunkKind::parameter, layout_.chunk_elements());
  for (std::uint32_t l = 0; l < layers(); ++l) {
    kept_.push_back(chunks_.size());
    for (std::uint32_t copy = 0; pipeline().holds(l) && copy < pipeline().kept_copies(l); ++copy)
      add_runs(
          l, layout_.chunks_of(l), data().shards(ChunkKind::parameter) ? data().group() : 1,
          {.bytes = bytes, .kind = ChunkKind::activation, .end = memory::End::high, .layer = l, .role = mapping::Role::kept});
  }
}

// Like the kept weight versions, but of the whole state that a rank updates.
void StepMap::add_previous() {
  if (options_.early.empty()) return;
  for (std::uint32_t l = 0; l < layers(); ++l)
    for (const auto kind : kinds_) {
      const bool keeps = options_.early.contains(l) && pipeline().holds(l) && kind != ChunkKind::gradient;
      const auto bytes = options_.recipe.chunk_bytes(kind, layout_.chunk_elements());
      previous_.push_back(
          add_runs(l, keeps ? layout_.trained_chunks(l) : 0, data().shards(kind) ? data().group() : 1,
                   {.bytes = bytes, .kind = ChunkKind::activation, .layer = l, .role = mapping::Role::previous}));
    }
}

ChunkId StepMap::previous(ChunkKind kind, std::uint32_t layer, std::uint32_t chunk_in_layer) const {
  const auto at = static_cast<std::size_t>(std::ranges::find(kinds_, kind) - kinds_.begin());
  return ChunkId(previous_.at(layer * kinds_.size() + at) + held_position(kind, chunk_in_layer));
}

bool StepMap::copies(std::uint32_t layer) const {
  return layer == layout_.tied_home() && pipeline().holds(layout_.tied_layer()) && !pipeline().holds(layer);
}

std::uint32_t StepMap::copied_to(std::uint32_t layer) const {
  const bool apart = layer == layout_.tied_home() && pipeline().holds(layer) && !pipeline().holds(layout_.tied_layer());
  return apart ? pipeline().holder(layout_.tied_layer()) : pipeline().rank;
}

bool StepMap::reads_skip_here(std::uint32_t k, std::uint32_t m) const {
  return skips_.reader(k) != kNone && pipeline().computes(skips_.reader(k), m);
}

bool StepMap::adds_skip_behind(std::uint32_t layer, std::uint32_t m) const {
  const auto reader = skips_.reader(layer);
  return reader != kNone && pipeline().holder(reader, m) == pipeline().holder(layer, m);
}

bool StepMap::adds_skip_before(std::uint32_t layer, std::uint32_t m) const {
  return layer + 1 < layers() && skips_.reader(layer + 1) != kNone && !adds_skip_behind(layer + 1, m);
}

// A result is sent first to the next layer's rank, then to the rank of the layer that skips from it.
bool StepMap::is_last_sent(const Action& send) const {
  const auto reader = skips_.reader(send.layer);
  if (reader == kNone) return true;
  return pipeline().holder(reader, send.micro_batch) == send.peer;
}

// Adds chunks in the runs of the layer's layout, for its first `chunks` chunks; each added chunk stands for `each` of them.
std::uint32_t StepMap::add_runs(std::uint32_t layer, std::uint32_t chunks, std::uint32_t each, const mapping::Chunk& chunk) {
  const auto first = chunks_.size();
  // Only updates use masters and moments, one chunk at a time. A run of them would take room on the device for all.
  const bool apart = chunk.kind == ChunkKind::master || rules::is_optimizer_state(chunk.kind);
  for (const auto& run : layout_.runs_of(layer)) {
    if (run.first >= chunks) continue;
    const auto count = std::min(run.count, chunks - run.first) / each;
    for (std::uint32_t i = 0; i < (apart ? count : 1); ++i) chunks_.add(apart ? 1 : count, chunk);
  }
  // If the state is sharded, this rank holds only its own chunks.
  const bool sharded = chunk.role == mapping::Role::kept ? data().shards(ChunkKind::parameter)
                                                         : mapping::is_state(chunk.role) && data().shards(chunk.kind);
  for (auto i = first; i < chunks_.size(); ++i) chunks_.place(i, sharded ? data().own(i - first) : i - first);
  return first;
}

ChunkId StepMap::state(ChunkKind kind, std::uint32_t layer, std::uint32_t chunk_in_layer) const {
  const auto at = std::ranges::find(kinds_, kind);
  if (at == kinds_.end()) throw std::logic_error(fmt::format("StepMap: the recipe has no {}", name_of(kind)));
  if (!pipeline().holds(layer) && !(kind == ChunkKind::parameter && copies(layer)))
    throw std::logic_error(fmt::format("StepMap: rank {} of the pipeline does not hold layer {}", pipeline().rank, layer));
  const auto first = state_first_[layer * kinds_.size() + static_cast<std::size_t>(at - kinds_.begin())];
  return ChunkId(first + held_position(kind, chunk_in_layer));
}

std::uint32_t StepMap::held_position(ChunkKind kind, std::uint32_t chunk_in_layer) const {
  if (!data().shards(kind)) return chunk_in_layer;
  const auto group = chunk_in_layer / data().group();
  if (chunk_in_layer != data().own(group))
    throw std::logic_error(
        fmt::format("StepMap: rank {} does not hold chunk {} of the {}", data().rank(), chunk_in_layer, name_of(kind)));
  return group;
}

ChunkId StepMap::tied_gradient(std::uint32_t chunk_in_layer) const {
  return ChunkId(index(tied_gradient_) + held_position(ChunkKind::gradient, chunk_in_layer));
}

bool StepMap::committed(ChunkId chunk) const {
  const auto& c = chunks_[chunk];
  if (!options_.commits || c.role != mapping::Role::state || c.kind == ChunkKind::gradient || !pipeline().holds(c.layer))
    return false;
  return data().stage() == 0 || c.position % data().group() == data().place();
}

bool StepMap::unifies(std::uint32_t layer) const {
  const auto in_common = [&](const ParamSpec& p) { return !p.tied && !p.frozen && model::holders(p, parts()) > 1; };
  return std::ranges::any_of(layout_.params(layer), in_common);
}

std::uint32_t StepMap::reduced_groups(std::uint32_t layer) const {
  return layout_.trained_groups(layer) + (layer == layout_.tied_layer() ? layout_.tied_groups() : 0);
}

ChunkId StepMap::weights(std::uint32_t layer, std::uint32_t copy) const {
  if (data().shards(ChunkKind::parameter)) return ChunkId(gathered_[layer]);
  return copy != 0 ? kept(layer, copy) : state(ChunkKind::parameter, layer, 0);
}
std::uint32_t StepMap::kept_chunks(std::uint32_t layer) const {
  return data().shards(ChunkKind::parameter) ? layout_.groups_of(layer) : layout_.chunks_of(layer);
}
ChunkId StepMap::kept(std::uint32_t layer, std::uint32_t copy) const {
  return ChunkId(kept_.at(layer) + (copy - 1) * kept_chunks(layer));
}
ChunkId StepMap::gathered_from(const Action& a) const {
  return a.copy == 0 ? state(ChunkKind::parameter, a.layer, data().own(a.chunk))
                     : ChunkId(index(kept(a.layer, a.copy)) + a.chunk);
}
std::vector<std::pair<ChunkId, ChunkId>> StepMap::kept_by(const Action& a) const {
  if (data().shards(ChunkKind::parameter))
    return {{state(ChunkKind::parameter, a.layer, data().own(a.chunk)), ChunkId(index(kept(a.layer, a.copy)) + a.chunk)}};
  std::vector<std::pair<ChunkId, ChunkId>> pairs;
  for (const auto c : data().chunks_of(a.chunk))
    pairs.emplace_back(state(ChunkKind::parameter, a.layer, c), ChunkId(index(kept(a.layer, a.copy)) + c));
  return pairs;
}
ChunkId StepMap::gradients(std::uint32_t layer) const {
  return data().folds_each() ? ChunkId(buckets_[layer]) : state(ChunkKind::gradient, layer, 0);
}
ChunkId StepMap::tied_gradients() const { return data().folds_each() ? ChunkId(tied_bucket_) : tied_gradient_; }

StepMap::Reduced StepMap::reduced(std::uint32_t layer, std::uint32_t group) const {
  const bool tied = group >= layout_.trained_groups(layer);
  if (tied) group -= layout_.trained_groups(layer);
  const auto first = index(tied ? tied_gradients() : gradients(layer)) + group * (data().folds_each() ? 1 : data().group());
  return {ChunkId(first), tied ? tied_gradient(data().own(group)) : state(ChunkKind::gradient, layer, data().own(group)), tied};
}

ChunkId StepMap::gathered(std::uint32_t layer, std::uint32_t group) const {
  return ChunkId(index(weights(layer)) + group * (data().shards(ChunkKind::parameter) ? 1 : data().group()));
}

std::vector<ChunkId> StepMap::carried_by(const Action& message) const {
  if (message.payload == Payload::activation) return {buffers_.x(message.layer, message.micro_batch)};
  if (message.payload == Payload::gradient) {
    const auto from = message.op == Op::send ? pipeline().rank : message.peer;
    if (from == pipeline().holder(message.layer, message.micro_batch)) return {buffers_.d(message.layer, message.micro_batch)};
    return {buffers_.e(message.layer, message.micro_batch)};
  }
  std::vector<ChunkId> chunks;
  for (const auto c : data().updated_in(message.chunk)) {
    if (message.payload == Payload::weights) chunks.push_back(state(ChunkKind::parameter, message.layer, c));
    if (message.payload == Payload::tied_gradient && layout_.adds_tied(message.layer, c)) chunks.push_back(tied_gradient(c));
  }
  return chunks;
}

std::vector<std::uint32_t> StepMap::updated_by(const Action& update) const {
  return options_.layer_unit ? final_gradients(update.layer) : data().updated_in(update.chunk);
}

LayerShape StepMap::layer_shape(std::uint32_t layer) const {
  LayerShape shape{.arithmetic = options_.recipe.compute == DType::fp64 ? DType::fp64 : DType::fp32,
                   .run_elements = static_cast<std::int64_t>(layout_.trained_chunks(layer) * layout_.chunk_elements()),
                   .share = {},
                   .chunk_elements = static_cast<std::int64_t>(layout_.chunk_elements())};
  if (halves_updates()) shape.share = {.ranks = data().group(), .rank = data().place()};
  for (std::uint32_t t = 0; t < layout_.tensors_of(layer); ++t) {
    const auto& param = layout_.param_at(layer, t);
    if (param.frozen) break;  // and so are all after it
    const auto& place = layout_.place(layer, t);
    const auto part = model::tile_shape(param, 0);  // some tiles of rows may have one row less
    const auto columns = part.rank() == 0 ? 1 : part[part.rank() - 1];
    shape.tensors.push_back({.first = static_cast<std::int64_t>(place.first_element),
                             .rows = columns == 0 ? 0 : static_cast<std::int64_t>(place.elements) / columns,
                             .columns = columns,
                             .hidden = layer != 0 && layer + 1 != layers(),
                             .rate = param.rate,
                             .decay = param.decay,
                             .stream = math::stream_of(param.name.c_str())});
  }
  return shape;
}

std::string StepMap::describe(ChunkId chunk) const {
  const auto& c = chunks_[chunk];
  const auto& layer = model_.layers[c.layer]->name();
  if (c.role == mapping::Role::state && is_packed_by_share(c))
    return fmt::format("{} of {}, as rank {} of {} packs it, part {}", name_of(c.kind), layer, data().place(), data().group(),
                       c.position / data().group());
  return mapping::describe(c, layer, layout_.chunk_elements());
}

bool StepMap::is_packed_by_share(const mapping::Chunk& c) const {
  return halves_updates() && c.kind == ChunkKind::second_moment && rules::is_packed(options_.recipe.format_of(c.kind));
}

}  // namespace terrace
