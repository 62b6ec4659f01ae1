// Compute's actions on the state of a layer: update, fill, keep.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include <terrace/core/base/units.h>
#include <terrace/core/math/philox.h>
#include <terrace/core/math/views.h>
#include <terrace/optimizers/schedule.h>
#include <terrace/parallel/model/param_tiles.h>
#include <terrace/parallel/run/compute_views.h>

namespace terrace {
namespace {

constexpr std::uint64_t kFillElements = 1 << 18;  // initial weights of one pool task: a millisecond of random numbers

// Elements [first, end) of a chunk's weights become zero.
void clear(Stream& stream, const rules::StoredWeights& weights, std::uint64_t first, std::uint64_t end) {
  if (first == end) return;
  for (const auto& part : {weights.parameter, weights.master}) {
    if (part.format == rules::Format::none) continue;
    const auto begin = rules::bytes_of(part.format, first);
    stream.submit([to = part.data + begin, bytes = rules::bytes_of(part.format, end) - begin] { std::memset(to, 0, bytes); });
  }
}

}  // namespace

void Compute::update(const Action& a, const Views& views, bool first) {
  for (const auto chunk : parts_.map->data().updated_in(a.chunk)) update_chunk(a, chunk, views, first);
}

void Compute::update_chunk(const Action& a, std::uint32_t chunk_in_layer, const Views& views, bool first) {
  const auto& map = *parts_.map;
  const auto& recipe = map.options().recipe;
  const auto of = [&](ChunkKind kind) { return stored(kind, views.of(map.state(kind, a.layer, chunk_in_layer))); };
  ChunkUpdate chunk{.parameter = of(ChunkKind::parameter), .master = {}, .gradient = of(ChunkKind::gradient)};
  if (recipe.has_master()) chunk.master = of(ChunkKind::master);
  for (std::size_t i = 0; i < recipe.states.size(); ++i) chunk.states.at(i) = of(recipe.states[i]);

  std::vector<UpdatePart> parts;
  for (const auto& s : map.layout().segments(a.layer, chunk_in_layer)) {
    const auto& param = map.layout().param_at(a.layer, s.tensor);
    parts.push_back({.first = static_cast<std::int64_t>(s.chunk_element),
                     .count = static_cast<std::int64_t>(s.elements),
                     .rate = param.rate,
                     .decay = param.decay,
                     .gradient_scale = a.op == Op::early ? 1 : gradient_scale(param),
                     .stream = math::stream_of(param.name.c_str()) + model::part_number(param.split, map.tensor()),
                     .tensor_element = s.tensor_element});
  }
  chunk.parts = parts;
  if (a.op == Op::early) {
    if (first) throw std::logic_error("Compute: a first update cannot be early, because there is no state to take back");
    keep_state(a, chunk_in_layer, views, chunk);
  }
  parts_.optimizer->enqueue(stream_for(a), update_step(a, first), chunk);
}

void Compute::update_layer(const Action& a, const Views& views, bool first) {
  const auto step = update_step(a, first);
  const auto& map = *parts_.map;
  const auto& recipe = map.options().recipe;
  std::vector<ChunkUpdate> chunks;
  std::vector<Stored> packed;
  for (const auto c : map.updated_by(a)) {
    const auto stored_in = [&](ChunkKind kind) { return stored(kind, views.of(map.state(kind, a.layer, c))); };
    auto& chunk = chunks.emplace_back();
    chunk.parameter = stored_in(ChunkKind::parameter);
    chunk.gradient = stored_in(ChunkKind::gradient);
    if (recipe.has_master()) chunk.master = stored_in(ChunkKind::master);
    std::size_t next = 0;
    for (const auto kind : recipe.states) {
      auto state = stored_in(kind);
      if (state.data == nullptr) continue;  // the other half of the update has this state
      if (rules::is_packed(state.format)) {
        state.elements =
            static_cast<std::int64_t>(map.chunks()[map.state(kind, a.layer, c)].bytes / rules::bytes_of(state.format, 1));
        packed.push_back(state);
      } else {
        chunk.states.at(next++) = state;
      }
    }
  }
  auto shape = map.layer_shape(a.layer);
  for (std::uint32_t t = 0; t < shape.tensors.size(); ++t)
    shape.tensors[t].gradient_scale = gradient_scale(map.layout().param_at(a.layer, t));
  parts_.optimizer->enqueue_layer(stream_for(a), step,
                                  {.chunks = chunks,
                                   .packed = packed,
                                   .tensors = shape.tensors,
                                   .scratch = views.of(map.update_scratch()),
                                   .share = shape.share,
                                   .half = a.op == Op::prepare    ? UpdateHalf::prepare
                                           : map.halves_updates() ? UpdateHalf::finish
                                                                  : UpdateHalf::both});
}

const UpdateStep& Compute::given_step(const Action& a) const {
  return a.op == Op::early                    ? input_->early_update
         : !input_->updates.empty()           ? input_->updates[a.update]
         : input_->deferred.contains(a.layer) ? input_->pending
                                              : input_->update;
}

// An update that did nothing would still count as having written the weights that it overwrites.
bool Compute::leaves_out(const Action& a) const {
  const bool updates = a.op == Op::update || a.op == Op::prepare || a.op == Op::exchange;
  return (updates && given_step(a).step == UpdateStep::kNone) || input_->early.leaves_out(a);
}

// Waits for the verdict if the update has one. The lanes have enough work to continue meanwhile.
UpdateStep Compute::update_step(const Action& a, bool first) {
  auto step = given_step(a);
  step.first = first;
  auto& [given, factor] = verdicts_.at(a.update);
  if (given && !factor) {
    given->wait();
    const auto norm = squares_[a.update].norm([](std::uint32_t, std::uint32_t) { return true; });
    // If the norm is NaN or infinite, the factor is 0 and the caller decides after the step; nothing is committed before that.
    factor = std::isfinite(norm) ? clip_factor(norm * step.gradient_scale, input_->greatest_norm) : 0;
  }
  step.gradient_scale *= factor.value_or(1);
  if (!input_->group_scales.empty() && a.op != Op::early) step.gradient_scale = 1;
  return step;
}

double Compute::gradient_scale(const ParamSpec& param) const {
  if (input_->group_scales.empty()) return 1;
  if (param.clip_group < 0) return input_->update.gradient_scale;
  return input_->group_scales.at(static_cast<std::size_t>(param.clip_group));
}

Stored Compute::stored(ChunkKind kind, std::byte* data) const {
  const auto& map = *parts_.map;
  return {data, map.options().recipe.format_of(kind), static_cast<std::int64_t>(map.layout().chunk_elements())};
}

void Compute::fill(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const bool has_master = map.options().recipe.has_master() && !map.is_frozen(a.layer, a.chunk);
  for (const auto chunk : map.data().updated_in(a.chunk)) {
    rules::StoredWeights weights;
    weights.widened = map.options().recipe.has_master() && !has_master;
    const std::uint64_t end = map.layout().chunk_elements();
    for (const auto kind : {ChunkKind::parameter, ChunkKind::master}) {
      if (kind == ChunkKind::master && !has_master) continue;
      const auto id = map.state(kind, a.layer, chunk);
      auto& part = kind == ChunkKind::parameter ? weights.parameter : weights.master;
      part = stored(kind, views.of(id));
      // Padding is set to zero, so that a chunk's bytes depend only on its weights: the end of the chunk here, gaps between
      // tensors below.
      const auto used = rules::bytes_of(part.format, end);
      stream_for(a).submit([to = part.data + used, bytes = map.chunks()[id].bytes - used] { std::memset(to, 0, bytes); });
    }
    std::uint64_t filled = 0;
    for (const auto& s : map.layout().segments(a.layer, chunk)) {
      clear(stream_for(a), weights, filled, s.chunk_element);
      fill_segment(a, s, weights);
      filled = s.chunk_element + s.elements;
    }
    clear(stream_for(a), weights, filled, end);
  }
}

void each_range(const ParamSpec& param, const TensorParallel& tensor, std::uint64_t first, const TensorView& range,
                const WeightRange& use) {
  model::each_stored_run(param, tensor, first, static_cast<std::uint64_t>(range.elements()), [&](const model::SplitRun& run) {
    const auto at = static_cast<std::int64_t>(run.in_part - first), count = static_cast<std::int64_t>(run.count);
    use(param, run.in_whole, math::part(range, at, {count}));
  });
}

void Compute::fill_segment(const Action& a, const memory::Segment& s, const rules::StoredWeights& weights) {
  stream_for(a).submit([this, &param = parts_.map->layout().param_at(a.layer, s.tensor), s, weights] {
    const auto fill = [&](std::uint64_t first, std::uint64_t count, const WeightRange& give) {
      rules::write_weights(weights, static_cast<std::int64_t>(s.chunk_element + first), static_cast<std::int64_t>(count),
                           [&](std::int64_t offset, TensorView range) {
                             if (!param.split.parts.empty()) std::memset(range.data, 0, range.bytes());  // gaps stay zero
                             each_range(param, parts_.map->tensor(),
                                        s.tensor_element + first + static_cast<std::uint64_t>(offset), range, give);
                           });
    };
    if (input_->new_weights) return fill(0, s.elements, input_->new_weights);
    // Tasks begin in ascending order on whatever thread, because weights from files are read ahead in that order.
    auto& pool = parts_.device->pool();
    std::atomic<std::uint64_t> next{0};
    const auto threads =
        std::min<std::uint64_t>(ceil_div(s.elements, kFillElements), static_cast<std::uint64_t>(pool.threads()));
    pool.parallel_for(static_cast<std::int64_t>(threads), [&](std::int64_t) {
      for (std::uint64_t first = 0; (first = next.fetch_add(kFillElements)) < s.elements;)
        fill(first, std::min(kFillElements, s.elements - first), input_->weights);
    });
  });
}

// On the host, the update itself keeps what it changes, less the padding behind the elements. A device's stream copies it all.
void Compute::keep_state(const Action& a, std::uint32_t chunk_in_layer, const Views& views, ChunkUpdate& chunk) {
  const auto& map = *parts_.map;
  const auto& recipe = map.options().recipe;
  auto& stream = stream_for(a);
  const bool on_host = stream.device().computes_on_host();
  for (const auto kind : recipe.kinds()) {
    if (kind == ChunkKind::gradient) continue;
    const auto state = map.state(kind, a.layer, chunk_in_layer);
    auto* const previous = views.of(map.previous(kind, a.layer, chunk_in_layer));
    const auto first = on_host ? rules::bytes_of(recipe.format_of(kind), map.layout().chunk_elements()) : 0;
    if (const auto bytes = map.chunks()[state].bytes; first < bytes)
      stream.copy(previous + first, views.of(state) + first, bytes - first);
    if (!on_host) continue;
    const auto at = std::ranges::find(recipe.states, kind) - recipe.states.begin();
    (kind == ChunkKind::parameter ? chunk.previous.parameter
     : kind == ChunkKind::master  ? chunk.previous.master
                                  : chunk.previous.states.at(static_cast<std::size_t>(at))) = previous;
  }
}

void Compute::restore(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  for (const auto c : map.updated_by(a))
    for (const auto kind : map.options().recipe.kinds()) {
      if (kind == ChunkKind::gradient) continue;
      const auto state = map.state(kind, a.layer, c);
      stream_for(a).copy(views.of(state), views.of(map.previous(kind, a.layer, c)), map.chunks()[state].bytes);
    }
}

void Compute::keep(const Action& a, const Views& views) {
  for (const auto& [from, to] : parts_.map->kept_by(a))
    stream_on(Lane::compute).copy(views.of(to), views.of(from), parts_.map->chunks()[to].bytes);
}

}  // namespace terrace
