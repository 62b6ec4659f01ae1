#include <terrace/parallel/compute.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <unordered_map>

#include <terrace/core/philox.h>

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
  // A declared parameter's tensor of one kind, contiguous over its run.
  [[nodiscard]] TensorView tensor(Kind kind, std::uint32_t layer, std::uint32_t param) const {
    const auto home = map_.home(layer, param);
    const auto& recipe = map_.options().recipe;
    const auto dtype = kind == Kind::gradient ? recipe.gradient : recipe.compute;
    const auto& shape = map_.params(layer)[param].shape;
    if (kind == Kind::gradient && home.layer != layer) return {of(map_.tied_gradient()), dtype, shape};
    const auto& place = map_.layout().place(home.layer, home.tensor);
    return {of(map_.state(kind, home.layer, 0)) + place.first_element * size_of(dtype), dtype, shape};
  }
  [[nodiscard]] std::vector<TensorView> tensors(Kind kind, std::uint32_t layer) const {
    std::vector<TensorView> views;
    for (std::uint32_t p = 0; p < map_.params(layer).size(); ++p) views.push_back(tensor(kind, layer, p));
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

Compute::Compute(const Parts& parts)
    : parts_(parts), memory_(parts.device->host_memory()), squares_(parts.map->layout(), memory_) {
  const auto& map = *parts_.map;
  const std::size_t losses = map.micro_batches();
  const auto tokens = losses * static_cast<std::size_t>(map.options().shape.batch.tokens());
  slots_ = memory_->allocate(losses * sizeof(double) + 2 * tokens * sizeof(std::int32_t));
  auto* const doubles = reinterpret_cast<double*>(slots_.data());
  auto* const ids = reinterpret_cast<std::int32_t*>(doubles + losses);
  losses_ = {doubles, losses};
  tokens_ = {ids, tokens};
  targets_ = {ids + tokens, tokens};
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
}

Stream& Compute::stream_for(const Action& action) const {
  return parts_.map->lane_of(action) == Lane::update ? *parts_.host_stream : *parts_.stream;
}

double Compute::loss_sum() const {
  double sum = 0;
  for (const double loss : losses_) sum += loss;
  return sum;
}

double Compute::gradient_norm() const { return has_norms_ ? squares_.norm() : 0; }

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
    case Op::update: {
      const auto starts = [&](const Use& use) {
        return is_optimizer_state(map.chunk_kind(use.chunk)) && use.access == Access::overwrite;
      };
      update(action, views, std::ranges::any_of(uses, starts));
      break;
    }
    case Op::fill: fill(action, views); break;
    case Op::visit: visit(action, views); break;
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
  LayerContext ctx{.stream = *parts_.stream,
                   .math = parts_.device->math(),
                   .shape = shape,
                   .tokens = ids(tokens_),
                   .targets = ids(targets_),
                   .loss_scale = input_->loss_scale,
                   .loss = {reinterpret_cast<std::byte*>(&losses_[a.micro_batch]), DType::fp64, {1}},
                   .scratch = {views.of(map.scratch(a.layer)), DType::i32, {scratch_bytes / 4}},
                   .evaluate = a.op == Op::evaluate};

  const auto weights = views.tensors(Kind::parameter, a.layer);
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
  const auto carried = map.carried_pack(a.layer).views(views.of(map.carried(a.layer)));
  t.gradients = gradients;
  t.accumulate = a.micro_batch == 0 ? Accumulate::no : Accumulate::yes;
  t.carried = carried;
  if (!last) t.dy = views.activation(map.d(a.layer + 1, a.micro_batch));
  t.dx = views.activation(map.d(a.layer, a.micro_batch));
  model_layer.backward(ctx, t, half);
}

void Compute::norm(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  auto& math = parts_.device->math();
  has_norms_ = true;
  for (std::uint32_t p = 0; p < map.params(a.layer).size(); ++p) {
    if (map.home(a.layer, p).layer != a.layer) continue;  // counted where it is declared
    const auto gradient = views.tensor(Kind::gradient, a.layer, p);
    // A tied tensor's uses are accumulated apart and added once, here.
    if (map.has_tied_gradient())
      for (std::uint32_t q = 0; q < map.params(map.tied_layer()).size(); ++q) {
        const auto home = map.home(map.tied_layer(), q);
        if (map.params(map.tied_layer())[q].tied && home.layer == a.layer && home.tensor == map.home(a.layer, p).tensor)
          math.convert(*parts_.stream, gradient, views.tensor(Kind::gradient, map.tied_layer(), q), Accumulate::yes);
      }
    const auto blocks = squares_.of(a.layer, map.home(a.layer, p).tensor, 0, static_cast<std::uint64_t>(gradient.elements()));
    math.sum_of_squares(*parts_.stream, blocks.sums, gradient, blocks.first);
  }
}

void Compute::update(const Action& a, const Views& views, bool first) {
  const auto& map = *parts_.map;
  const auto& recipe = map.options().recipe;
  const auto stored = [&](Kind kind) { return stored_chunk(kind, a, views); };
  ChunkUpdate chunk{.parameter = stored(Kind::parameter), .master = {}, .gradient = stored(Kind::gradient)};
  if (recipe.has_master()) chunk.master = stored(Kind::master);
  for (std::size_t i = 0; i < recipe.states.size(); ++i) chunk.states.at(i) = stored(recipe.states[i]);

  std::vector<UpdatePart> parts;
  for (const auto& s : map.layout().segments(a.layer, a.chunk)) {
    const auto& param = own_param(a.layer, s.tensor);
    parts.push_back({.first = static_cast<std::int64_t>(s.chunk_element),
                     .count = static_cast<std::int64_t>(s.elements),
                     .decay = param.decay ? 1.0 : 0.0,
                     .stream = stream_of(param.name.c_str()),
                     .tensor_element = s.tensor_element});
  }
  auto step = input_->update;
  step.first = first;
  chunk.parts = parts;
  parts_.optimizer->enqueue(stream_for(a), step, chunk);
}

Stored Compute::stored_chunk(Kind kind, const Action& a, const Views& views) const {
  const auto& map = *parts_.map;
  return {views.of(map.state(kind, a.layer, a.chunk)), map.options().recipe.format_of(kind),
          static_cast<std::int64_t>(map.layout().chunk_elements())};
}

StoredWeights Compute::stored_weights(const Action& a, const Views& views) const {
  const bool master = parts_.map->options().recipe.has_master();
  return {.parameter = stored_chunk(Kind::parameter, a, views),
          .master = master ? stored_chunk(Kind::master, a, views) : Stored{}};
}

void Compute::fill(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  // Padding is zero, so that a chunk's bytes are a function of its weights.
  for (const auto kind : {Kind::parameter, Kind::master}) {
    if (kind == Kind::master && !map.options().recipe.has_master()) continue;
    const auto chunk = map.state(kind, a.layer, a.chunk);
    stream_for(a).submit([to = views.of(chunk), bytes = map.chunk_bytes(chunk)] { std::memset(to, 0, bytes); });
  }
  for (const auto& s : map.layout().segments(a.layer, a.chunk))
    stream_for(a).submit([this, &param = own_param(a.layer, s.tensor), s, weights = stored_weights(a, views)] {
      write_weights(weights, static_cast<std::int64_t>(s.chunk_element), static_cast<std::int64_t>(s.elements),
                    [&](std::int64_t first, TensorView range) {
                      input_->weights(param, s.tensor_element + static_cast<std::uint64_t>(first), range);
                    });
    });
}

void Compute::visit(const Action& a, const Views& views) {
  for (const auto& s : parts_.map->layout().segments(a.layer, a.chunk))
    stream_for(a).submit([this, &param = own_param(a.layer, s.tensor), s, weights = stored_weights(a, views)] {
      read_weights(weights, static_cast<std::int64_t>(s.chunk_element), static_cast<std::int64_t>(s.elements),
                   [&](std::int64_t first, TensorView range) {
                     input_->weights(param, s.tensor_element + static_cast<std::uint64_t>(first), range);
                   });
    });
}

}  // namespace terrace
