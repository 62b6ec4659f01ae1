#include <terrace/parallel/compute.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <unordered_map>

#include <terrace/core/philox.h>
#include <terrace/optimizers/schedule.h>
#include <terrace/parallel/comm/block8.h>
#include <terrace/parallel/comm/narrow.h>

namespace terrace {

class Compute::Views {
 public:
  Views(const StepMap& map, std::span<const Use> uses, std::span<const std::uint64_t> offsets, std::byte* base) : map_(map) {
    for (std::size_t i = 0; i < uses.size(); ++i) at_.emplace(index(uses[i].chunk), base + offsets[i]);
  }
  [[nodiscard]] std::byte* of(ChunkId chunk) const {
    const auto at = at_.find(index(chunk));
    return at == at_.end() ? nullptr : at->second;
  }
  // A declared parameter's weight, or where its backward writes the gradient: contiguous over its run.
  [[nodiscard]] TensorView tensor(Kind kind, std::uint32_t layer, std::uint32_t param, std::uint32_t copy = 0) const {
    const auto home = map_.home(layer, param);
    const auto& recipe = map_.options().recipe;
    const auto dtype = kind == Kind::gradient ? recipe.gradient : recipe.compute;
    const auto& shape = map_.params(layer)[param].shape;
    const auto run = kind == Kind::parameter ? map_.weights(home.layer, copy)
                     : home.layer == layer   ? map_.gradients(layer)
                                             : map_.tied_gradients();
    const auto& place = map_.layout().place(home.layer, home.tensor);
    return {of(run) + place.first_element * size_of(dtype), dtype, shape};
  }
  [[nodiscard]] std::vector<TensorView> tensors(Kind kind, std::uint32_t layer, std::uint32_t copy = 0) const {
    std::vector<TensorView> views;
    for (std::uint32_t p = 0; p < map_.params(layer).size(); ++p) views.push_back(tensor(kind, layer, p, copy));
    return views;
  }
  [[nodiscard]] TensorView activation(ChunkId chunk) const {
    auto* data = of(chunk);
    if (!data) return {};
    return {data, map_.model().dtype, {map_.options().shape.batch.tokens(), map_.model().width}};
  }
  // A range of a chunk, as a vector.
  [[nodiscard]] TensorView range(ChunkId chunk, DType dtype, std::uint64_t first, std::uint64_t elements) const {
    return {of(chunk) + first * size_of(dtype), dtype, {static_cast<std::int64_t>(elements)}};
  }

 private:
  const StepMap& map_;
  std::unordered_map<std::uint32_t, std::byte*> at_;
};

Compute::Compute(const Parts& parts) : parts_(parts), memory_(parts.device->host_memory()) {
  const auto& map = *parts_.map;
  for (std::uint32_t u = 0; u < map.updates_a_step(); ++u) squares_.emplace_back(map.layout(), memory_);
  const std::size_t losses = std::size_t{map.micro_batches()} * map.data().ranks;
  const auto tokens = std::size_t{map.micro_batches()} * static_cast<std::size_t>(map.options().shape.batch.tokens());
  slots_ = memory_->allocate(losses * sizeof(double) + 2 * tokens * sizeof(std::int32_t));
  auto* const doubles = reinterpret_cast<double*>(slots_.data());
  auto* const ids = reinterpret_cast<std::int32_t*>(doubles + losses);
  losses_ = {doubles, losses};
  tokens_ = {ids, tokens};
  targets_ = {ids + tokens, tokens};
  if (parts.ranks.data) ranks_.emplace(*parts.ranks.data, map.data());
}

void Compute::begin(const StepInput& input) {
  const auto take = [](std::span<const std::int32_t> from, std::span<std::int32_t> to) {
    if (from.size() > to.size()) throw std::logic_error("Compute: more tokens than the program has micro-batches for");
    std::ranges::copy(from, to.begin());
  };
  take(input.tokens, tokens_);
  take(input.targets, targets_);
  input_ = &input;
  has_norms_ = false;
  std::ranges::fill(losses_, 0.0);
  verdicts_.assign(squares_.size(), {});
  for (auto& squares : squares_)
    if (shares_squares()) std::ranges::fill(squares.all(), 0.0);  // other ranks' are added
}

// Every number is one rank's, and zero on all others: their sum is that number.
void Compute::share_results(Share what) {
  auto* const among = what == Share::step ? parts_.ranks.all : what == Share::evaluation ? parts_.ranks.pipeline : nullptr;
  if (!among) return;
  auto& stream = *parts_.communication_stream;
  const auto share = [&](Communicator& ranks, std::span<double> numbers) {
    const Bytes bytes{reinterpret_cast<std::byte*>(numbers.data()), numbers.size_bytes()};
    ranks.all_reduce(stream, Reduction::sum(DType::fp64), bytes, bytes);
  };
  stream.wait(parts_.stream->record());
  share(*among, losses_);
  // Where data ranks hold all of a gradient each has its layers' squares already. A rank without layers shares, too. They are
  // the same in every copy of the state.
  if (what != Share::step || !shares_squares()) return;
  const bool sharded = parts_.map->data().stage() >= 1;
  auto& with = !parts_.ranks.pipeline ? ranks_->sharers() : sharded ? *parts_.ranks.copy : *parts_.ranks.pipeline;
  for (std::size_t u = 0; u < squares_.size(); ++u)
    if (!verdicts_[u].given) share(with, squares_[u].all());
}

// The lane waits for the norms (Walk), and who wants the norm for the lane.
void Compute::verdict(const Action& a) {
  auto& stream = *parts_.communication_stream;
  const auto numbers = squares_.at(a.update).all();
  const Bytes bytes{reinterpret_cast<std::byte*>(numbers.data()), numbers.size_bytes()};
  if (parts_.ranks.pipeline) parts_.ranks.pipeline->all_reduce(stream, Reduction::sum(DType::fp64), bytes, bytes);
  verdicts_[a.update].given = stream.record();
}

bool Compute::shares_squares() const { return parts_.map->data().stage() >= 1 || parts_.ranks.pipeline; }

Stream& Compute::stream_for(const Action& action) const {
  return parts_.map->lane_of(action) == Lane::update ? *parts_.host_stream : *parts_.stream;
}

double Compute::loss_sum() const {
  double sum = 0;
  for (const double loss : losses_) sum += loss;
  return sum;
}

double Compute::gradient_norm() const {
  if (!has_norms_ && !parts_.ranks.pipeline) return 0;
  return squares_.back().norm([](std::uint32_t, std::uint32_t) { return true; });
}

std::vector<double> Compute::loss_sums() const {
  if (!parts_.map->pipeline().asynchronous()) return {};
  std::vector<double> sums(squares_.size());
  const auto each = losses_.size() / sums.size();
  for (std::size_t i = 0; i < losses_.size(); ++i) sums[i / each] += losses_[i];
  return sums;
}

std::vector<double> Compute::gradient_norms() const {
  std::vector<double> norms;
  if (!parts_.map->pipeline().asynchronous()) return norms;
  for (const auto& squares : squares_) norms.push_back(squares.norm([](std::uint32_t, std::uint32_t) { return true; }));
  return norms;
}

std::vector<double> Compute::group_norms() const {
  const auto& groups = parts_.map->options().param_groups;
  if (!any_clips(groups) || (!has_norms_ && !parts_.ranks.pipeline)) return {};
  std::vector<double> norms(groups.size() + 1, 0.0);
  const auto norm_of = [&](std::int32_t group) {
    return squares_.back().norm([&](std::uint32_t l, std::uint32_t t) { return own_param(l, t).clip_group == group; });
  };
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (groups[g].clip) norms[g] = norm_of(static_cast<std::int32_t>(g));
  norms.back() = norm_of(-1);
  return norms;
}

// Waits for the verdict where there is one: by then the lanes have what they do meanwhile.
UpdateStep Compute::update_step(const Action& a, bool first) {
  auto step = input_->updates.empty() ? input_->update : input_->updates[a.update];
  step.first = first;
  auto& [given, factor] = verdicts_.at(a.update);
  if (given && !factor) {
    given->wait();
    const auto norm = squares_[a.update].norm([](std::uint32_t, std::uint32_t) { return true; });
    // A norm that is none is the caller's to judge, when the step has ended; until then nothing is committed.
    factor = std::isfinite(norm) ? clip_factor(norm, input_->greatest_norm) : 0;
  }
  step.gradient_scale *= factor.value_or(1);
  if (!input_->group_scales.empty()) step.gradient_scale = 1;
  return step;
}

double Compute::gradient_scale(const ParamSpec& param) const {
  if (input_->group_scales.empty()) return 1;
  if (param.clip_group < 0) return input_->update.gradient_scale;
  return input_->group_scales.at(static_cast<std::size_t>(param.clip_group));
}

// The layout counts a layer's own tensors only.
const ParamSpec& Compute::own_param(std::uint32_t layer, std::uint32_t tensor) const {
  const auto& map = *parts_.map;
  for (std::uint32_t p = 0; p < map.params(layer).size(); ++p) {
    const auto home = map.home(layer, p);
    if (home.layer == layer && home.tensor == tensor) return map.params(layer)[p];
  }
  throw std::logic_error("Compute: a segment of no declared tensor");
}

void Compute::enqueue(const Action& action, std::span<const Use> uses, std::span<const std::uint64_t> offsets,
                      std::byte* base) {
  const auto& map = *parts_.map;
  const Views views(map, uses, offsets, base);
  switch (action.op) {
    case Op::norm: norm(action, views); break;
    case Op::update:
    case Op::prepare: {
      const auto starts = [&](const Use& use) {
        return is_optimizer_state(map.chunk_kind(use.chunk)) && use.access == Access::overwrite;
      };
      const bool first = std::ranges::any_of(uses, starts);
      map.options().layer_unit ? update_layer(action, views, first) : update(action, views, first);
      break;
    }
    case Op::fill: fill(action, views); break;
    case Op::visit: visit(action, views); break;
    case Op::keep: keep(action, views); break;
    case Op::verdict: verdict(action); break;
    case Op::gather: gather(action, views); break;
    case Op::exchange: exchange(action, views); break;
    case Op::reduce: reduce(action, views); break;
    case Op::send:
    case Op::receive: message(action, views); break;
    default: layer(action, views); break;
  }
}

void Compute::layer(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const auto& model_layer = *map.model().layers[a.layer];
  const auto shape = map.options().shape.batch;
  const auto tokens = shape.tokens();
  const auto first = static_cast<std::size_t>(a.micro_batch) * static_cast<std::size_t>(tokens);
  const auto ids = [&](std::span<std::int32_t> all) -> TensorView {
    return {reinterpret_cast<std::byte*>(all.data() + first), DType::i32, {tokens}};
  };
  const auto scratch_bytes = static_cast<std::int64_t>(map.chunk_bytes(map.scratch(a.layer)));
  LayerContext ctx{
      .stream = *parts_.stream,
      .math = parts_.device->math(),
      .shape = shape,
      .tokens = ids(tokens_),
      .targets = ids(targets_),
      .loss_scale = input_->loss_scale,
      .loss = {reinterpret_cast<std::byte*>(&losses_[a.micro_batch * map.data().ranks + map.data().turn()]), DType::fp64, {1}},
      .scratch = {views.of(map.scratch(a.layer)), DType::i32, {scratch_bytes / 4}},
      .evaluate = a.op == Op::evaluate};

  const auto weights = views.tensors(Kind::parameter, a.layer, a.copy);
  const auto saved = map.saved_pack(a.layer).views(views.of(map.saved(a.layer, a.micro_batch)));
  LayerTensors t{.weights = weights, .gradients = {}, .x = {}, .y = {}, .saved = saved, .dy = {}, .dx = {}, .carried = {}};
  t.x = views.activation(map.x(a.layer, a.micro_batch));
  const bool last = a.layer + 1 == map.layers();
  if (a.op == Op::decode) {
    t.y = last ? input_->logits : views.activation(map.x(a.layer + 1, 0));
    dynamic_cast<const GenerativeLayer&>(model_layer).decode_step(ctx, weights, t.x, t.y, saved, input_->position);
    return;
  }
  if (a.op == Op::forward || a.op == Op::evaluate || a.op == Op::recompute) {
    if (!last) t.y = views.activation(a.op == Op::recompute ? map.spare() : map.x(a.layer + 1, a.micro_batch));
    model_layer.forward(ctx, t);
    return;
  }
  const auto half = a.op == Op::backward ? Half::both : a.op == Op::backward_input ? Half::input : Half::weight;
  std::vector<TensorView> gradients;
  if (has(half, Half::weight)) gradients = views.tensors(Kind::gradient, a.layer);
  const auto carried = map.carried_pack(a.layer).views(views.of(map.carried(a.layer, a.micro_batch)));
  t.gradients = gradients;
  t.accumulate = map.begins_gradient(a.micro_batch) || map.data().folds_each() ? Accumulate::no : Accumulate::yes;
  t.carried = carried;
  if (!last) t.dy = views.activation(map.d(a.layer + 1, a.micro_batch));
  t.dx = views.activation(map.d(a.layer, a.micro_batch));
  model_layer.backward(ctx, t, half);
}

// Where all of the gradient is here, tensor by tensor; else by this rank's chunks. The blocks of squares are the same.
void Compute::norm(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  auto& math = parts_.device->math();
  const auto& layout = map.layout();
  const auto dtype = map.options().recipe.gradient;
  has_norms_ = true;
  const auto tied_tensor = [&](std::uint32_t tensor) {
    return map.has_tied_gradient() && map.tied_home() == a.layer && is_tied(tensor);
  };
  // `chunk` holds the range and, where it is a run's first one, all that follows.
  const auto take = [&](std::uint32_t chunk, std::uint32_t tensor, std::uint64_t chunk_element, std::uint64_t tensor_element,
                        std::uint64_t count) {
    const auto gradient = views.range(map.state(Kind::gradient, a.layer, chunk), dtype, chunk_element, count);
    // A tied tensor's uses are accumulated apart and added once, here.
    if (tied_tensor(tensor))
      math.convert(*parts_.stream, gradient, views.range(map.tied_gradient(chunk), dtype, chunk_element, count),
                   Accumulate::yes);
    if (!map.speaks_for(a.layer)) return;  // it counts once
    const auto blocks = squares_.at(a.update).of(a.layer, tensor, tensor_element, count);
    math.sum_of_squares(*parts_.stream, blocks.sums, gradient, blocks.first);
  };
  if (map.data().stage() == 0) {
    for (std::uint32_t t = 0; t < layout.tensors_of(a.layer); ++t)
      take(0, t, layout.place(a.layer, t).first_element, 0, layout.place(a.layer, t).elements);
    return;
  }
  for (const auto chunk : map.final_gradients(a.layer))
    for (const auto& s : layout.segments(a.layer, chunk)) take(chunk, s.tensor, s.chunk_element, s.tensor_element, s.elements);
}

void Compute::update(const Action& a, const Views& views, bool first) {
  for (const auto chunk : parts_.map->updated_in(a.chunk)) update_chunk(a, chunk, views, first);
}

void Compute::update_chunk(const Action& a, std::uint32_t chunk_in_layer, const Views& views, bool first) {
  const auto& map = *parts_.map;
  const auto& recipe = map.options().recipe;
  const auto of = [&](Kind kind) { return stored(kind, views.of(map.state(kind, a.layer, chunk_in_layer))); };
  ChunkUpdate chunk{.parameter = of(Kind::parameter), .master = {}, .gradient = of(Kind::gradient)};
  if (recipe.has_master()) chunk.master = of(Kind::master);
  for (std::size_t i = 0; i < recipe.states.size(); ++i) chunk.states.at(i) = of(recipe.states[i]);

  std::vector<UpdatePart> parts;
  for (const auto& s : map.layout().segments(a.layer, chunk_in_layer)) {
    const auto& param = own_param(a.layer, s.tensor);
    parts.push_back({.first = static_cast<std::int64_t>(s.chunk_element),
                     .count = static_cast<std::int64_t>(s.elements),
                     .rate = param.rate,
                     .decay = param.decay,
                     .gradient_scale = gradient_scale(param),
                     .stream = stream_of(param.name.c_str()),
                     .tensor_element = s.tensor_element});
  }
  chunk.parts = parts;
  parts_.optimizer->enqueue(stream_for(a), update_step(a, first), chunk);
}

void Compute::update_layer(const Action& a, const Views& views, bool first) {
  const auto& map = *parts_.map;
  const auto& recipe = map.options().recipe;
  std::vector<ChunkUpdate> chunks;
  std::vector<Stored> packed;
  for (const auto c : map.updated_by(a)) {
    const auto stored_in = [&](Kind kind) { return stored(kind, views.of(map.state(kind, a.layer, c))); };
    auto& chunk = chunks.emplace_back();
    chunk.parameter = stored_in(Kind::parameter);
    chunk.gradient = stored_in(Kind::gradient);
    if (recipe.has_master()) chunk.master = stored_in(Kind::master);
    std::size_t next = 0;
    for (const auto kind : recipe.states) {
      auto state = stored_in(kind);
      if (state.data == nullptr) continue;  // the other half's
      if (is_packed(state.format)) {
        state.elements = static_cast<std::int64_t>(map.chunk_bytes(map.state(kind, a.layer, c)) / bytes_of(state.format, 1));
        packed.push_back(state);
      } else {
        chunk.states.at(next++) = state;
      }
    }
  }
  auto shape = map.layer_shape(a.layer);
  for (std::uint32_t t = 0; t < shape.tensors.size(); ++t)
    shape.tensors[t].gradient_scale = gradient_scale(own_param(a.layer, t));
  parts_.optimizer->enqueue_layer(stream_for(a), update_step(a, first),
                                  {.chunks = chunks,
                                   .packed = packed,
                                   .tensors = shape.tensors,
                                   .scratch = views.of(map.update_scratch()),
                                   .share = shape.share,
                                   .half = a.op == Op::prepare    ? UpdateHalf::prepare
                                           : map.halves_updates() ? UpdateHalf::finish
                                                                  : UpdateHalf::both});
}

void Compute::exchange(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const auto& share = map.data();
  auto& stream = map.lane_of(a) == Lane::communication ? *parts_.communication_stream : stream_for(a);
  for (const auto& e : map.layer_needs(a.layer).exchanges) {
    const Bytes all{views.of(map.update_scratch()) + e.offset, e.bytes};
    const auto part = e.bytes / share.group();
    if (e.way == ScratchExchange::Way::sum)
      ranks_->sharers().all_reduce(stream, Reduction::sum(DType::fp64), all, all);
    else
      ranks_->sharers().all_gather(stream, all.subspan(part * share.place(), part), all);
  }
}

Stored Compute::stored(Kind kind, std::byte* data) const {
  const auto& map = *parts_.map;
  return {data, map.options().recipe.format_of(kind), static_cast<std::int64_t>(map.layout().chunk_elements())};
}

void Compute::fill(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const bool has_master = map.options().recipe.has_master();
  for (const auto chunk : map.updated_in(a.chunk)) {
    StoredWeights weights;
    // Padding is zero, so that a chunk's bytes are a function of its weights.
    for (const auto kind : {Kind::parameter, Kind::master}) {
      if (kind == Kind::master && !has_master) continue;
      const auto id = map.state(kind, a.layer, chunk);
      (kind == Kind::parameter ? weights.parameter : weights.master) = stored(kind, views.of(id));
      stream_for(a).submit([to = views.of(id), bytes = map.chunk_bytes(id)] { std::memset(to, 0, bytes); });
    }
    for (const auto& s : map.layout().segments(a.layer, chunk))
      stream_for(a).submit([this, &param = own_param(a.layer, s.tensor), s, weights] {
        write_weights(weights, static_cast<std::int64_t>(s.chunk_element), static_cast<std::int64_t>(s.elements),
                      [&](std::int64_t first, TensorView range) {
                        const auto& give = input_->new_weights ? input_->new_weights : input_->weights;
                        give(param, s.tensor_element + static_cast<std::uint64_t>(first), range);
                      });
      });
  }
}

// Every rank sees all weights: what is sharded is gathered here, beside the visit.
void Compute::visit(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const auto& recipe = map.options().recipe;
  const auto group = map.data().group();
  const auto chunk_bytes = [&](Kind kind) { return recipe.chunk_bytes(kind, map.layout().chunk_elements()); };
  const auto chunk_of = [&](Kind kind, std::uint32_t i) {
    if (!map.shown(kind, a.layer)) return views.of(map.state(kind, a.layer, map.chunks_of(a.chunk)[i]));
    return views.of(map.visited(kind)) + i * chunk_bytes(kind);
  };
  const auto gathered = [&](Kind kind) {
    if (map.data().shards(kind) && map.holds(a.layer)) {
      const auto own = map.state(kind, a.layer, map.own(a.chunk));
      const auto bytes = map.chunk_bytes(own);
      ranks_->sharers().all_gather(stream_for(a), {views.of(own), bytes}, {views.of(map.visited(kind)), bytes * group});
    }
    if (!parts_.ranks.pipeline) return;
    const auto holder = static_cast<int>(map.pipeline().holder(a.layer));
    for (std::uint32_t i = 0; i < group; ++i)
      parts_.ranks.pipeline->broadcast(stream_for(a), {chunk_of(kind, i), chunk_bytes(kind)}, holder);
  };
  if (!recipe.copies_master()) gathered(Kind::parameter);
  if (recipe.has_master()) gathered(Kind::master);
  for (std::uint32_t i = 0; i < group; ++i) {
    const auto at = [&](Kind kind) { return stored(kind, chunk_of(kind, i)); };
    StoredWeights weights;
    if (!recipe.copies_master()) weights.parameter = at(Kind::parameter);
    if (recipe.has_master()) weights.master = at(Kind::master);
    for (const auto& s : map.layout().segments(a.layer, map.chunks_of(a.chunk)[i]))
      stream_for(a).submit([this, &param = own_param(a.layer, s.tensor), s, weights] {
        read_weights(weights, static_cast<std::int64_t>(s.chunk_element), static_cast<std::int64_t>(s.elements),
                     [&](std::int64_t first, TensorView range) {
                       input_->weights(param, s.tensor_element + static_cast<std::uint64_t>(first), range);
                     });
      });
  }
}

void Compute::keep(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  for (std::uint32_t i = 0; i < map.data().group(); ++i) {
    const auto chunk = a.chunk * map.data().group() + i;
    const ChunkId from{index(map.weights(a.layer)) + chunk}, to{index(map.weights(a.layer, a.copy)) + chunk};
    parts_.stream->copy(views.of(to), views.of(from), map.chunk_bytes(to));
  }
}

// A lane's payload is its number: source and destination are the communicator's.
void Compute::message(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  auto& stream = *parts_.message_streams.at(index(map.lane_of(a)) - index(Lane::message));
  const auto peer = static_cast<int>(a.peer), lane = static_cast<int>(a.payload);
  for (const auto chunk : map.carried_by(a)) {
    const Bytes bytes{views.of(chunk), map.chunk_bytes(chunk)};
    if (a.op == Op::send)
      parts_.ranks.pipeline->send(stream, bytes, peer, lane);
    else
      parts_.ranks.pipeline->receive(stream, bytes, peer, lane);
  }
}

void Compute::gather(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const auto mine = map.state(Kind::parameter, a.layer, map.own(a.chunk));
  const auto group = map.gathered(a.layer, a.chunk);
  const auto bytes = map.chunk_bytes(mine);
  auto& stream = *parts_.communication_stream;
  // Where weights are not sharded this rank's chunk is the group's own block.
  if (map.data().weights == Travel::whole)
    return ranks_->sharers().all_gather(stream, {views.of(mine), bytes}, {views.of(group), bytes * map.data().group()});
  // Packed blocks are gathered at the end of where they are unpacked to; a rank's own are packed too, so that all compute
  // alike.
  const auto dtype = map.options().recipe.compute;
  const auto blocks = static_cast<std::int64_t>(bytes / size_of(dtype)) / kBlock8Elements;
  const auto packed = static_cast<std::size_t>(blocks) * kBlock8Bytes, ranks = std::size_t{map.data().group()};
  std::byte* const all = views.of(group) + ranks * (bytes - packed);
  std::byte* const own = all + packed * map.data().place();
  stream.submit([=, from = views.of(mine)] { pack_block8(own, dtype, from, blocks); });
  ranks_->sharers().all_gather(stream, {own, packed}, {all, packed * ranks});
  stream.submit([=, to = views.of(group)] { unpack_block8(dtype, to, all, blocks * static_cast<std::int64_t>(ranks)); });
}

// A gradient that is to be reduced, in fewer bytes; its buffer is given up afterwards and is its own staging.
Bytes Compute::pack(const Action& a, Bytes group, bool tied) {
  const auto& map = *parts_.map;
  auto& stream = *parts_.communication_stream;
  const auto elements = group.size() / sizeof(float);
  if (map.data().gradients == Travel::bf16) {
    stream.submit([=] { narrow_in_place(group.data(), static_cast<std::int64_t>(elements)); });
    return group.first(group.size() / 2);
  }
  // Nobody has written what no tensor reaches, and it must not decide a block's scale.
  const auto layer = tied ? map.tied_home() : a.layer;
  const auto first_group = tied ? a.chunk - map.groups_of(a.layer) : a.chunk;
  std::vector<Bytes> padding;
  std::size_t written = 0;
  const auto skip_to = [&](std::size_t element) {
    if (element > written) padding.push_back(group.subspan(written * sizeof(float), (element - written) * sizeof(float)));
  };
  for (const auto chunk : map.chunks_of(first_group))
    for (const auto& s : map.layout().segments(layer, chunk)) {
      if (tied && !is_tied(s.tensor)) continue;
      const auto at = (chunk % map.data().group()) * map.layout().chunk_elements() + s.chunk_element;
      skip_to(at);
      written = at + s.elements;
    }
  skip_to(elements);
  const auto blocks = static_cast<std::int64_t>(elements) / kBlock8Elements;
  stream.submit([=] {
    for (const auto& bytes : padding) std::memset(bytes.data(), 0, bytes.size());
    pack_block8(group.data(), DType::fp32, group.data(), blocks);
  });
  return group.first(static_cast<std::size_t>(blocks) * kBlock8Bytes);
}

// Whether another layer reads it too, of the layer that declares it.
bool Compute::is_tied(std::uint32_t tensor) const {
  const auto& map = *parts_.map;
  const auto& params = map.params(map.tied_layer());
  for (std::uint32_t q = 0; q < params.size(); ++q)
    if (params[q].tied && map.home(map.tied_layer(), q).tensor == tensor) return true;
  return false;
}

// Of a group each rank folds a part, round after round, and shows it to the others when the last one is in it.
void Compute::reduce_directions(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const auto& data = map.data();
  auto& stream = *parts_.communication_stream;
  auto& ranks = *parts_.ranks.directions.at(map.pipeline().stage(a.layer));
  const auto [first, into, tied] = map.reduced(a.layer, a.chunk);
  const auto bytes = map.chunk_bytes(into);
  const Bytes group{views.of(first), bytes * data.group()};
  auto sum = Reduction::sum(map.options().recipe.gradient);
  if (!data.folds_each()) return ranks.all_reduce(stream, sum, group, group);
  const Bytes all{views.of(into) - bytes * data.place(), group.size()};
  const auto part = all.size() / static_cast<std::size_t>(ranks.size());
  const auto mine = all.subspan(part * static_cast<std::size_t>(ranks.rank()), part);
  sum.onto = !map.begins_gradient(a.micro_batch);
  ranks.reduce_scatter(stream, sum, group, mine);
  if (map.ends_gradient(a.micro_batch)) ranks.all_gather(stream, mine, all);
}

void Compute::reduce(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  if (map.reduces_between_replicas()) return reduce_directions(a, views);
  const auto& data = map.data();
  auto& stream = *parts_.communication_stream;
  const auto [first, into, tied] = map.reduced(a.layer, a.chunk);
  const auto bytes = map.chunk_bytes(into);
  const Bytes group{views.of(first), bytes * data.group()}, mine{views.of(into), bytes};
  auto sum = Reduction::sum(map.options().recipe.gradient);
  if (!data.folds_each() && data.stage() == 0) return ranks_->all().all_reduce(stream, sum, group, group);
  const bool last = map.ends_gradient(a.micro_batch);
  auto each = sum;
  each.onto = data.folds_each() && !map.begins_gradient(a.micro_batch);
  auto from = group;
  if (data.gradients != Travel::whole) {
    from = pack(a, group, tied);
    if (data.gradients == Travel::bf16) each.from = DType::bf16;
    each.blocks = data.gradients == Travel::int8;
  }
  if (data.canonical && data.copies() > 1) {
    const auto part = mine.subspan(bytes / data.copies() * (data.rank / data.sharers()), bytes / data.copies());
    ranks_->turns().reduce_scatter(stream, each, from, part);
    if (last) ranks_->copies().all_gather(stream, part, mine);
    return;
  }
  ranks_->sharers().reduce_scatter(stream, each, from, mine);
  if (last && data.copies() > 1) ranks_->copies().all_reduce(stream, sum, mine, mine);
  if (last && data.folds_each() && !data.shards(Kind::gradient))
    ranks_->all().all_gather(stream, mine, {mine.data() - bytes * data.place(), bytes * data.group()});
}

}  // namespace terrace
