#include <terrace/parallel/step_map.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include <terrace/core/philox.h>

namespace terrace {
namespace {

constexpr std::uint64_t kTensorAlignBytes = 64;
// Chunks are small enough that several fit into a small host budget, and large enough that a disk reaches its bandwidth.
constexpr std::uint64_t kMinChunkElements = 32 * Layout::kPageElements;   // 64 Ki
constexpr std::uint64_t kMaxChunkElements = 512 * Layout::kPageElements;  // 1 Mi
// The chunks of a large model are larger, so that a plan, which decides on each of them, takes seconds: a layer still has a
// dozen. Their number grows again above this size, because a chunk is one transfer and one update.
constexpr std::uint64_t kMostChunks = 2048;                               // of a kind
constexpr std::uint64_t kLargestChunkElements = 128 * kMaxChunkElements;  // 128 Mi

std::uint64_t search_chunk(const std::vector<std::vector<LayoutTensor>>& layers, std::uint32_t group) {
  std::uint64_t total = 0;
  for (const auto& layer : layers)
    for (const auto& tensor : layer) total += tensor.elements;
  // A tiny model must still have many chunks, or there would be nothing to move.
  const auto limit = std::clamp(total / kMostChunks, kMaxChunkElements, kLargestChunkElements);
  const auto most = std::clamp(total / 64 / group, Layout::kPageElements, limit);
  return Layout::search(layers, std::min(kMinChunkElements, most), most, group);
}

std::vector<std::vector<LayoutTensor>> own_tensors(const std::vector<std::vector<ParamSpec>>& params) {
  std::vector<std::vector<LayoutTensor>> layers;
  for (const auto& layer : params) {
    auto& tensors = layers.emplace_back();
    for (const auto& p : layer)
      if (!p.tied) tensors.push_back({p.name, static_cast<std::uint64_t>(p.shape.elements())});
  }
  return layers;
}

std::vector<std::vector<ParamSpec>> all_params(const Model& model, std::span<const ParamGroup> groups) {
  std::vector<std::vector<ParamSpec>> params;
  for (const auto& layer : model.layers) params.push_back(layer->params());
  apply_groups(groups, params);
  return params;
}

}  // namespace

Pack::Pack(std::vector<TensorSpec> specs) : tensors(std::move(specs)) {
  for (const auto& t : tensors) {
    offsets.push_back(bytes);
    bytes = round_up(bytes + t.bytes(), kTensorAlignBytes);
  }
  bytes = round_up(bytes, kPageBytes);
}

std::vector<TensorView> Pack::views(std::byte* base) const {
  std::vector<TensorView> v;
  for (std::size_t i = 0; i < tensors.size(); ++i) v.push_back({base + offsets[i], tensors[i].dtype, tensors[i].shape});
  return v;
}

StepMap::StepMap(const Model& model, const Options& options)
    : model_(model),
      options_(options),
      skips_(model),
      params_(all_params(model, options.param_groups)),
      layout_(own_tensors(params_),
              options.chunk_elements != 0 ? options.chunk_elements : search_chunk(own_tensors(params_), options.data.group()),
              options.data.group()),
      kinds_(options.recipe.kinds()) {
  options_.data.whole_gradients = reduces_between_replicas();
  // Where every declared parameter lies.
  std::map<std::string, Home> homes_by_name;
  for (std::uint32_t l = 0; l < params_.size(); ++l) {
    auto& homes = homes_.emplace_back();
    std::uint32_t own = 0;
    for (const auto& p : params_[l]) {
      if (p.tied) {
        const auto at = homes_by_name.find(p.name);
        if (at == homes_by_name.end() || tied_layer_ != kNone)
          throw std::logic_error("StepMap: tied parameter " + p.name + " has no earlier declaration, or the model has two");
        homes.push_back(at->second);
        tied_layer_ = l;
        tied_home_ = at->second.layer;
      } else {
        homes.push_back({l, own++});
        homes_by_name[p.name] = homes.back();
      }
    }
  }

  if (tied_layer_ != kNone) demand_tied_together();
  add_state();
  add_activations();
  if (data().reduces() || pipeline().ranks > 1) add_shared();
  if (pipeline().asynchronous()) add_kept();
  if (skips_.any()) add_skips();
  if (pipeline().ranks > 1) add_peer_lanes();
}

bool StepMap::has_input(std::uint32_t layer) const {
  const auto reader = skips_.reader(layer);
  return holds(layer) || (layer > 0 && holds(layer - 1)) || (reader != kNone && holds(reader));
}

// A copy of tied weights is on one rank, which computes all backwards of the tied layer. In an order in two directions the
// first and the last stage are on the same ranks, which need no copy.
void StepMap::demand_tied_together() const {
  if (pipeline().replicas() == 1) return;
  std::set<std::uint32_t> home_ranks, tied_ranks;
  for (const auto& of_replica : pipeline().rank_of) {
    home_ranks.insert(of_replica[tied_home_]);
    tied_ranks.insert(of_replica[tied_layer_]);
  }
  if (home_ranks == tied_ranks) return;
  throw Error(
      fmt::format("{} reads a weight of {}: in an order in two directions both must be on the same ranks\n  put one into "
                  "the first stage and the other into the last, or give --untied",
                  model_.layers[tied_layer_]->name(), model_.layers[tied_home_]->name()),
      Exit::usage);
}

void StepMap::add_peer_lanes() {
  const auto me = pipeline().rank;
  const auto add = [&](std::uint32_t from, std::uint32_t to, Payload payload) {
    if (from == to || (from != me && to != me)) return;
    const PeerLane lane{from == me ? Op::send : Op::receive, payload, from == me ? to : from};
    if (std::ranges::find(peer_lanes_, lane) == peer_lanes_.end()) peer_lanes_.push_back(lane);
  };
  for (std::uint32_t replica = 0; replica < pipeline().replicas(); ++replica)
    for (std::uint32_t l = 1; l < layers(); ++l) {
      const auto before = pipeline().holder(l - 1, replica), here = pipeline().holder(l, replica);
      add(before, here, Payload::activation);
      add(here, before, Payload::gradient);
      if (skips_.reader(l) == kNone) continue;
      const auto skipping = pipeline().holder(skips_.reader(l), replica);
      add(before, skipping, Payload::activation);
      add(skipping, before, Payload::gradient);
    }
  if (tied_layer_ != kNone && pipeline().replicas() == 1) {
    add(pipeline().holder(tied_home_), pipeline().holder(tied_layer_), Payload::weights);
    add(pipeline().holder(tied_layer_), pipeline().holder(tied_home_), Payload::tied_gradient);
  }
  if (peer_lanes_.size() > kPeerLanes)
    throw Error(
        fmt::format(
            "rank {} of the pipeline needs {} message lanes, but there are only {}\n  place the stages so that each rank "
            "has fewer neighbours",
            me, peer_lanes_.size(), kPeerLanes),
        Exit::usage);
}

// One run a layer and kind, so that a layer's weights are one span; chunk i of every kind covers the same elements.
void StepMap::add_state() {
  std::uint32_t updates = 0;
  for (std::uint32_t l = 0; l < layers(); ++l) {
    first_update_.push_back(updates);
    if (holds(l)) updates += updates_of(l);
  }
  auto& recipe = options_.recipe;
  if (options_.layer_unit && options_.layer_unit->second_moment != Packed::none)
    recipe.second_moment = recipe.compute == DType::fp64 ? Format::packed64 : Format::packed;
  const auto bytes_of = [&](Kind kind) { return recipe.chunk_bytes(kind, layout_.chunk_elements()); };
  const auto held = [&](Kind kind, std::uint32_t chunks) { return data().shards(kind) ? chunks / data().group() : chunks; };
  layer_needs_.resize(layers());
  for (std::uint32_t l = 0; l < layers(); ++l) {
    if (!holds(l)) {
      for (const auto kind : kinds_)
        state_first_.push_back(add_run(copies(l) && kind == Kind::parameter ? held(kind, layout_.chunks_of(l)) : 0,
                                       {.bytes = bytes_of(kind), .kind = kind, .layer = l}));
      continue;
    }
    auto& needs = layer_needs_[l];
    if (options_.layer_unit) needs = options_.layer_unit->needs(layer_shape(l));
    update_scratch_bytes_ = std::max(update_scratch_bytes_, round_up(needs.scratch_bytes, kPageBytes));
    // A packed state's numbers are spread over as many chunks as this rank has of the layer's.
    const auto chunks = layout_.chunks_of(l);
    const auto own = std::uint64_t{held(Kind::second_moment, chunks)};
    const auto packed = std::max<std::uint64_t>(1, ceil_div(needs.packed_numbers, own));
    for (const auto kind : kinds_) {
      const auto bytes = is_packed(recipe.format_of(kind)) ? recipe.chunk_bytes(kind, packed) : bytes_of(kind);
      state_first_.push_back(add_run(held(kind, chunks), {.bytes = bytes, .kind = kind, .layer = l}));
    }
  }
  if (tied_layer_ == kNone) return;
  for (std::uint32_t p = 0; p < params_[tied_layer_].size(); ++p)
    if (params_[tied_layer_][p].tied) {
      const auto& place = layout_.place(tied_home_, home(tied_layer_, p).tensor);
      const auto group_elements = layout_.chunk_elements() * data().group();
      tied_chunks_ =
          static_cast<std::uint32_t>(ceil_div(place.first_element + place.elements, group_elements)) * data().group();
      tied_gradient_ = ChunkId(add_run(
          holds(tied_layer_) || holds(tied_home_) ? held(Kind::gradient, tied_chunks_) : 0,
          {.bytes = bytes_of(Kind::gradient), .kind = Kind::gradient, .layer = tied_layer_, .role = Role::tied_gradient}));
    }
}

void StepMap::add_activations() {
  const auto& batch = options_.shape.batch;
  const auto m_count = micro_batches();
  const auto row_bytes = static_cast<std::uint64_t>(batch.tokens() * model_.width) * size_of(model_.dtype);
  const auto activation_bytes = round_up(row_bytes, kPageBytes);
  for (const auto& layer : model_.layers) {
    if (options_.decode_positions == 0) {
      saved_packs_.emplace_back(layer->saved(batch));
    } else {
      const auto* generative = dynamic_cast<const GenerativeLayer*>(layer.get());
      if (!generative) throw Error("layer " + layer->name() + " cannot generate", Exit::usage);
      saved_packs_.emplace_back(generative->cache(options_.decode_positions));
    }
    carried_packs_.emplace_back(layer->carried(batch));
  }
  // Clears settings without effect: the last layer's backward follows its forward, and some layers save nothing.
  auto& each = options_.activations;
  each.resize(layers());
  each.back() = {};
  for (std::uint32_t l = 0; l < layers(); ++l) each[l].recompute &= saved_packs_[l].bytes != 0;
  const auto add_each = [&](Role role, auto bytes_of) {
    const auto first = chunks_.size();
    const std::uint32_t copies = role == Role::scratch || (role == Role::carried && !pipeline().halves) ? 1 : m_count;
    for (std::uint32_t l = 0; l < layers(); ++l)
      for (std::uint32_t m = 0; m < copies; ++m)
        add_run(1, {.bytes = bytes_of(l), .kind = Kind::activation, .end = End::high, .layer = l, .position = m, .role = role});
    return first;
  };
  const auto input_bytes = [&](std::uint32_t l) { return l == 0 || !has_input(l) ? 0 : activation_bytes; };
  const auto here = [&](std::uint32_t l, std::uint64_t bytes) { return holds(l) ? bytes : 0; };
  x_ = add_each(Role::input, input_bytes);
  d_ = add_each(Role::input_gradient, input_bytes);
  saved_ = add_each(Role::saved, [&](std::uint32_t l) { return here(l, saved_packs_[l].bytes); });
  carried_ = add_each(Role::carried, [&](std::uint32_t l) { return here(l, carried_packs_[l].bytes); });
  scratch_ = add_each(Role::scratch,
                      [&](std::uint32_t l) { return here(l, round_up(model_.layers[l]->scratch_bytes(batch), kPageBytes)); });
  spare_ = add_run(1, {.bytes = activation_bytes, .kind = Kind::activation, .end = End::high, .role = Role::spare});
  if (update_scratch_bytes_ != 0)
    update_scratch_ =
        add_run(1, {.bytes = update_scratch_bytes_, .kind = Kind::activation, .end = End::high, .role = Role::update_scratch});
}

// Chunks that exist for a short time on every rank and belong to all of them.
void StepMap::add_shared() {
  const auto add = [&](Role role, Kind kind, std::uint32_t layer, std::uint32_t groups) {
    const auto bytes = options_.recipe.chunk_bytes(kind, layout_.chunk_elements()) * data().group();
    return add_run(groups, {.bytes = bytes, .kind = Kind::activation, .end = End::high, .layer = layer, .role = role});
  };
  for (std::uint32_t l = 0; l < layers(); ++l) {
    const auto here = holds(l) ? groups_of(l) : 0;
    if (data().shards(Kind::parameter))
      gathered_.push_back(add(Role::gathered, Kind::parameter, l, copies(l) ? groups_of(l) : here));
    if (data().folds_each()) buckets_.push_back(add(Role::bucket, Kind::gradient, l, here));
  }
  if (data().folds_each() && tied_layer_ != kNone)
    tied_bucket_ = add(Role::tied_bucket, Kind::gradient, tied_layer_, holds(tied_layer_) ? tied_chunks_ / data().group() : 0);
  const auto shows = [&](Kind kind) { return data().shards(kind) || pipeline().ranks > 1; };
  if (shows(Kind::parameter)) visited_weights_ = add(Role::visited, Kind::parameter, 0, 1);
  if (shows(Kind::master) && options_.recipe.has_master()) visited_masters_ = add(Role::visited, Kind::master, 0, 1);
}

// Like gathered weights, they exist only within a step and are not committed.
void StepMap::add_kept() {
  const auto bytes = options_.recipe.chunk_bytes(Kind::parameter, layout_.chunk_elements());
  for (std::uint32_t l = 0; l < layers(); ++l) {
    kept_.push_back(chunks_.size());
    for (std::uint32_t copy = 0; holds(l) && copy < pipeline().kept_copies(l); ++copy)
      add_run(kept_chunks(l), {.bytes = bytes, .kind = Kind::activation, .end = End::high, .layer = l, .role = Role::kept});
  }
}

void StepMap::add_skips() {
  const auto row_bytes = static_cast<std::uint64_t>(options_.shape.batch.tokens() * model_.width) * size_of(model_.dtype);
  for (std::uint32_t k = 0; k < layers(); ++k) {
    skipped_.push_back(chunks_.size());
    if (skips_.reader(k) == kNone || !has_input(k)) continue;
    for (std::uint32_t m = 0; m < micro_batches(); ++m)
      add_run(1, {.bytes = round_up(row_bytes, kPageBytes),
                  .kind = Kind::activation,
                  .end = End::high,
                  .layer = k,
                  .position = m,
                  .role = Role::skip_gradient});
  }
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

// A result goes to the next layer's rank first, then to that of the layer that skips from it.
bool StepMap::is_last_sent(const Action& send) const {
  const auto reader = skips_.reader(send.layer);
  if (reader == kNone) return true;
  return pipeline().holder(reader, send.micro_batch) == send.peer;
}

std::uint32_t StepMap::add_run(std::uint32_t count, const Chunk& chunk) {
  const auto first = chunks_.add(count, chunk);
  // Of state that is sharded, a run holds this rank's chunks only.
  const bool sharded =
      chunk.role == Role::kept ? data().shards(Kind::parameter) : is_state(chunk.role) && data().shards(chunk.kind);
  for (std::uint32_t i = 0; i < count; ++i)
    if (sharded || is_state(chunk.role)) chunks_.place(first + i, sharded ? own(i) : i);
  return first;
}

ChunkId StepMap::state(Kind kind, std::uint32_t layer, std::uint32_t chunk_in_layer) const {
  const auto at = std::ranges::find(kinds_, kind);
  if (at == kinds_.end()) throw std::logic_error(fmt::format("StepMap: the recipe has no {}", name_of(kind)));
  if (!holds(layer) && !(kind == Kind::parameter && copies(layer)))
    throw std::logic_error(fmt::format("StepMap: rank {} of the pipeline does not hold layer {}", pipeline().rank, layer));
  const auto first = state_first_[layer * kinds_.size() + static_cast<std::size_t>(at - kinds_.begin())];
  return ChunkId(first + held_position(kind, chunk_in_layer));
}

std::uint32_t StepMap::held_position(Kind kind, std::uint32_t chunk_in_layer) const {
  if (!data().shards(kind)) return chunk_in_layer;
  const auto group = chunk_in_layer / data().group();
  if (chunk_in_layer != own(group))
    throw std::logic_error(
        fmt::format("StepMap: rank {} does not hold chunk {} of the {}", data().rank, chunk_in_layer, name_of(kind)));
  return group;
}

ChunkId StepMap::tied_gradient(std::uint32_t chunk_in_layer) const {
  return ChunkId(index(tied_gradient_) + held_position(Kind::gradient, chunk_in_layer));
}

bool StepMap::committed(ChunkId chunk) const {
  const auto& c = chunks_[chunk];
  if (!options_.commits || c.role != Role::state || c.kind == Kind::gradient || !holds(c.layer)) return false;
  return data().stage() == 0 || c.position % data().group() == data().place();
}

std::vector<std::uint32_t> StepMap::chunks_of(std::uint32_t group) const {
  std::vector<std::uint32_t> all(data().group());
  std::iota(all.begin(), all.end(), group * data().group());
  return all;
}

std::vector<std::uint32_t> StepMap::updated_in(std::uint32_t group) const {
  return data().stage() >= 1 ? std::vector{own(group)} : chunks_of(group);
}

std::uint32_t StepMap::reduced_groups(std::uint32_t layer) const {
  return groups_of(layer) + (layer == tied_layer_ ? tied_groups() : 0);
}

ChunkId StepMap::weights(std::uint32_t layer, std::uint32_t copy) const {
  if (data().shards(Kind::parameter)) return ChunkId(gathered_[layer]);
  return copy != 0 ? kept(layer, copy) : state(Kind::parameter, layer, 0);
}
std::uint32_t StepMap::kept_chunks(std::uint32_t layer) const {
  return data().shards(Kind::parameter) ? groups_of(layer) : layout_.chunks_of(layer);
}
ChunkId StepMap::kept(std::uint32_t layer, std::uint32_t copy) const {
  return ChunkId(kept_.at(layer) + (copy - 1) * kept_chunks(layer));
}
ChunkId StepMap::gathered_from(const Action& a) const {
  return a.copy == 0 ? state(Kind::parameter, a.layer, own(a.chunk)) : ChunkId(index(kept(a.layer, a.copy)) + a.chunk);
}
std::vector<std::pair<ChunkId, ChunkId>> StepMap::kept_by(const Action& a) const {
  if (data().shards(Kind::parameter))
    return {{state(Kind::parameter, a.layer, own(a.chunk)), ChunkId(index(kept(a.layer, a.copy)) + a.chunk)}};
  std::vector<std::pair<ChunkId, ChunkId>> pairs;
  for (const auto c : chunks_of(a.chunk))
    pairs.emplace_back(state(Kind::parameter, a.layer, c), ChunkId(index(kept(a.layer, a.copy)) + c));
  return pairs;
}
ChunkId StepMap::gradients(std::uint32_t layer) const {
  return data().folds_each() ? ChunkId(buckets_[layer]) : state(Kind::gradient, layer, 0);
}
ChunkId StepMap::tied_gradients() const { return data().folds_each() ? ChunkId(tied_bucket_) : tied_gradient_; }

StepMap::Reduced StepMap::reduced(std::uint32_t layer, std::uint32_t group) const {
  const bool tied = group >= groups_of(layer);
  if (tied) group -= groups_of(layer);
  const auto first = index(tied ? tied_gradients() : gradients(layer)) + group * (data().folds_each() ? 1 : data().group());
  return {ChunkId(first), tied ? tied_gradient(own(group)) : state(Kind::gradient, layer, own(group)), tied};
}

ChunkId StepMap::gathered(std::uint32_t layer, std::uint32_t group) const {
  return ChunkId(index(weights(layer)) + group * (data().shards(Kind::parameter) ? 1 : data().group()));
}

std::vector<ChunkId> StepMap::carried_by(const Action& message) const {
  if (message.payload == Payload::activation) return {x(message.layer, message.micro_batch)};
  if (message.payload == Payload::gradient) {
    const auto from = message.op == Op::send ? pipeline().rank : message.peer;
    if (from == pipeline().holder(message.layer, message.micro_batch)) return {d(message.layer, message.micro_batch)};
    return {e(message.layer, message.micro_batch)};
  }
  std::vector<ChunkId> chunks;
  for (const auto c : updated_in(message.chunk)) {
    if (message.payload == Payload::weights) chunks.push_back(state(Kind::parameter, message.layer, c));
    if (message.payload == Payload::tied_gradient && adds_tied(message.layer, c)) chunks.push_back(tied_gradient(c));
  }
  return chunks;
}

std::vector<std::uint32_t> StepMap::updated_by(const Action& update) const {
  return options_.layer_unit ? final_gradients(update.layer) : updated_in(update.chunk);
}

LayerShape StepMap::layer_shape(std::uint32_t layer) const {
  LayerShape shape{.arithmetic = options_.recipe.compute == DType::fp64 ? DType::fp64 : DType::fp32,
                   .run_elements = static_cast<std::int64_t>(layout_.chunks_of(layer) * layout_.chunk_elements()),
                   .share = {},
                   .chunk_elements = static_cast<std::int64_t>(layout_.chunk_elements())};
  if (halves_updates()) shape.share = {.ranks = data().group(), .rank = data().place()};
  for (std::uint32_t p = 0; p < params_[layer].size(); ++p) {
    const auto& param = params_[layer][p];
    if (homes_[layer][p].layer != layer) continue;
    const auto dims = param.shape.rank();
    const auto columns = dims == 0 ? 1 : param.shape[dims - 1];
    shape.tensors.push_back({.first = static_cast<std::int64_t>(layout_.place(layer, homes_[layer][p].tensor).first_element),
                             .rows = columns == 0 ? 0 : param.shape.elements() / columns,
                             .columns = columns,
                             .hidden = layer != 0 && layer + 1 != layers(),
                             .rate = param.rate,
                             .decay = param.decay,
                             .stream = stream_of(param.name.c_str())});
  }
  return shape;
}

std::string StepMap::describe(ChunkId chunk) const {
  const auto& c = chunks_[chunk];
  const auto& layer = model_.layers[c.layer]->name();
  if (c.role == Role::state && is_packed_by_share(c))
    return fmt::format("{} of {}, as rank {} of {} packs it, part {}", name_of(c.kind), layer, data().place(), data().group(),
                       c.position / data().group());
  return terrace::describe(c, layer, layout_.chunk_elements());
}

bool StepMap::is_packed_by_share(const Chunk& c) const {
  return halves_updates() && c.kind == Kind::second_moment && is_packed(options_.recipe.format_of(c.kind));
}

std::uint64_t StepMap::largest_use(const Program& program, Tier tier, Action* which) const {
  std::uint64_t largest = 0, awaited = 0;
  std::set<ChunkId> awaiting;
  for (const auto& action : program.actions) {
    if (action.op == Op::prefetch || tier_of(action) != tier) continue;
    std::uint64_t bytes = 0;
    for (const auto& use : uses(action)) {
      bytes += chunk_bytes(use.chunk);
      if (awaiting.erase(use.chunk) != 0) awaited -= chunk_bytes(use.chunk);
    }
    if (bytes + awaited > largest) {
      largest = bytes + awaited;
      if (which) *which = action;
    }
    if (!awaits(action)) continue;
    for (const auto chunk : carried_by(action)) {
      awaiting.insert(chunk);
      awaited += chunk_bytes(chunk);
    }
  }
  return largest;
}

}  // namespace terrace
