#include <terrace/parallel/executor.h>

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <unordered_map>

namespace terrace {

class Executor::Views {
 public:
  Views(const StepMap& map, std::span<const Use> uses, const Residency::Granted& granted, std::byte* base) : map_(map) {
    for (std::size_t i = 0; i < uses.size(); ++i) at_.emplace(index(uses[i].chunk), base + granted.offsets[i]);
  }
  [[nodiscard]] std::byte* of(ChunkId chunk) const {
    const auto at = at_.find(index(chunk));
    return at == at_.end() ? nullptr : at->second;
  }
  // A declared parameter's tensor of one kind, contiguous over its run.
  [[nodiscard]] TensorView tensor(Kind kind, std::uint32_t layer, std::uint32_t param) const {
    const auto home = map_.home(layer, param);
    const auto dtype = map_.options().recipe.dtype_of(kind);
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

Executor::Executor(const Parts& parts) : parts_(parts), stream_(parts.device->make_stream("compute")) {
  const auto& map = *parts_.map;
  losses_.resize(map.micro_batches());
  for (std::uint32_t l = 0; l < map.layers(); ++l) squares_.emplace_back(map.params(l).size());
}

Executor::~Executor() = default;

StepResult Executor::run(const Program& program, const StepInput& input) {
  input_ = &input;
  has_norms_ = false;
  result_ = {};
  std::fill(losses_.begin(), losses_.end(), 0.0);
  const auto begin = now_ns();
  try {
    parts_.walk->run(program, *this);
    stream_->synchronize();
  } catch (...) {
    // Operations that were promised will not come: whoever waits for them must end, and what runs still uses our buffers.
    parts_.lanes->fail_all(std::current_exception());
    try {
      stream_->synchronize();
    } catch (...) {  // the first error is the one to report
    }
    throw;
  }
  result_.seconds = static_cast<double>(now_ns() - begin) * 1e-9;
  for (const double loss : losses_) result_.loss_sum += loss;
  if (has_norms_) {
    double sum = 0;  // folded in declared order
    for (const auto& layer : squares_)
      for (const double s : layer) sum += s;
    result_.gradient_norm = std::sqrt(sum);
  }
  input_ = nullptr;
  return std::move(result_);
}

void Executor::flush() {
  parts_.walk->flush(*this);
  parts_.mover->drain();
}

void Executor::move(const Move& m) {
  result_.moved.add(m);
  parts_.mover->issue(m);
}

void Executor::compute(const Action& action, std::span<const Use> uses, const Residency::Granted& granted, Lane lane,
                       std::uint64_t sequence) {
  const auto& map = *parts_.map;
  auto* base = map.tier_of(action) == Tier::device ? parts_.device_base : parts_.host_base;
  const Views views(map, uses, granted, base);

  auto begin = std::make_shared<std::int64_t>(0);
  stream_->submit([begin] { *begin = now_ns(); });
  parts_.lanes->stream_wait(*stream_, granted.after);
  stream_->submit([this, begin, after = granted.after] {
    const auto ready = now_ns();
    account_stall(*begin, ready, after);
    *begin = ready;
  });

  switch (action.op) {
    case Op::norm: run_norm(action, views); break;
    case Op::update: {
      bool first = false;
      for (const auto& use : uses) first |= map.chunk_kind(use.chunk) == Kind::first_moment && use.access == Access::overwrite;
      run_update(action, views, first);
      break;
    }
    case Op::fill: run_fill(action, views); break;
    case Op::visit: run_visit(action, views); break;
    default: run_layer(action, views); break;
  }

  PerTier<std::uint64_t> reserved{};
  for (const auto tier : kAllTiers) reserved[tier] = parts_.walk->reserved_bytes(tier);
  stream_->submit([this, begin, action, lane, sequence, reserved] {
    const auto end = now_ns();
    {
      const std::lock_guard lock(result_mutex_);
      result_.compute_seconds += static_cast<double>(end - *begin) * 1e-9;
    }
    if (parts_.trace) {
      parts_.trace->span({std::string(name_of(lane)), to_text(action), *begin, end});
      for (const auto tier : kAllTiers)
        parts_.trace->counter({std::string(name_of(tier)) + " bytes", end, static_cast<double>(reserved[tier])});
    }
    parts_.lanes->of(lane).advance(sequence);
  });
}

void Executor::account_stall(std::int64_t begin_ns, std::int64_t end_ns, const Clock& after) {
  constexpr std::int64_t kNoise = 20'000;  // waking a thread is not a stall
  if (end_ns - begin_ns < kNoise) return;
  // The lane waited for last, and, for a copy, what that copy itself had waited for.
  Mover::Flight last{};
  Lane cause = Lane::compute;
  for (const Lane lane : {Lane::upload, Lane::download, Lane::read, Lane::write}) {
    Mover::Flight flight;
    if (after[lane] != 0 && parts_.mover->find(lane, after[lane], flight) && flight.ended_ns > last.ended_ns) {
      last = flight;
      cause = lane;
    }
  }
  auto remaining = static_cast<double>(end_ns - begin_ns) * 1e-9;
  const std::lock_guard lock(result_mutex_);
  const bool copy = cause == Lane::upload || cause == Lane::download;
  if (copy && last.waited_for != cause && last.waited_for != Lane::compute && last.started_ns > begin_ns) {
    const double inherited = std::min(remaining, static_cast<double>(last.started_ns - begin_ns) * 1e-9);
    result_.stall_s[std::string(name_of(last.waited_for))] += inherited;
    remaining -= inherited;
  }
  result_.stall_s[std::string(name_of(cause))] += remaining;
}

void Executor::run_layer(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const auto& layer = *map.model().layers[a.layer];
  const auto shape = map.options().shape.batch;
  const auto tokens = shape.tokens();
  const auto first = static_cast<std::size_t>(a.micro_batch) * static_cast<std::size_t>(tokens);
  const auto ids = [&](std::span<const std::int32_t> all) -> TensorView {
    // The layers' views are mutable by type only; token ids are read.
    return {reinterpret_cast<std::byte*>(const_cast<std::int32_t*>(all.data() + first)), DType::i32, {tokens}};
  };
  const auto scratch_bytes = static_cast<std::int64_t>(map.chunk_bytes(map.scratch(a.layer)));
  LayerContext ctx{.stream = *stream_,
                   .math = parts_.device->math(),
                   .shape = shape,
                   .tokens = ids(input_->tokens),
                   .targets = ids(input_->targets),
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
    dynamic_cast<const GenerativeLayer&>(layer).decode_step(ctx, weights, t.x, t.y, saved, input_->position);
    return;
  }
  if (a.op == Op::forward || a.op == Op::evaluate || a.op == Op::recompute) {
    if (!last) t.y = views.activation(a.op == Op::recompute ? map.spare() : map.x(a.layer + 1, a.micro_batch));
    layer.forward(ctx, t);
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
  layer.backward(ctx, t, half);
}

void Executor::run_norm(const Action& a, const Views& views) {
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
          math.convert(*stream_, gradient, views.tensor(Kind::gradient, map.tied_layer(), q), Accumulate::yes);
      }
    math.sum_of_squares(*stream_, {reinterpret_cast<std::byte*>(&squares_[a.layer][p]), DType::fp64, {1}}, gradient);
  }
}

void Executor::run_update(const Action& a, const Views& views, bool first) {
  const auto& map = *parts_.map;
  const auto& recipe = map.options().recipe;
  std::vector<UpdateSpans> spans;
  std::vector<std::uint32_t> own;  // the layout counts a layer's own tensors only
  for (std::uint32_t p = 0; p < map.params(a.layer).size(); ++p)
    if (map.home(a.layer, p).layer == a.layer) own.push_back(p);
  const auto view = [&](Kind kind, const Segment& s) {
    return views.range(map.state(kind, a.layer, a.chunk), recipe.dtype_of(kind), s.chunk_element, s.elements);
  };
  for (const auto& s : map.layout().segments(a.layer, a.chunk))
    spans.push_back({.weight = view(recipe.master_kind(), s),
                     .compute = recipe.master ? view(Kind::parameter, s) : TensorView{},
                     .gradient = view(Kind::gradient, s),
                     .first_moment = view(Kind::first_moment, s),
                     .second_moment = view(Kind::second_moment, s),
                     .decay = map.params(a.layer)[own[s.tensor]].decay});
  auto step = input_->update;
  step.first = first;
  stream_->submit([this, spans = std::move(spans), step] {
    for (const auto& s : spans) parts_.optimizer->update(parts_.device->pool(), step, s);
  });
}

void Executor::run_fill(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const auto& recipe = map.options().recipe;
  const auto master = recipe.master_kind();
  for (const auto kind : {Kind::parameter, master}) {
    // Padding is zero, so that a chunk's bytes are a function of its weights.
    const auto chunk = map.state(kind, a.layer, a.chunk);
    stream_->submit([to = views.of(chunk), bytes = map.chunk_bytes(chunk)] { std::memset(to, 0, bytes); });
  }
  std::vector<std::uint32_t> own;
  for (std::uint32_t p = 0; p < map.params(a.layer).size(); ++p)
    if (map.home(a.layer, p).layer == a.layer) own.push_back(p);
  for (const auto& s : map.layout().segments(a.layer, a.chunk)) {
    const auto range = views.range(map.state(master, a.layer, a.chunk), recipe.dtype_of(master), s.chunk_element, s.elements);
    stream_->submit(
        [this, &param = map.params(a.layer)[own[s.tensor]], s, range] { input_->weights(param, s.tensor_element, range); });
    if (recipe.master)
      parts_.device->math().convert(
          *stream_, views.range(map.state(Kind::parameter, a.layer, a.chunk), recipe.compute, s.chunk_element, s.elements),
          range);
  }
}

void Executor::run_visit(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const auto master = map.options().recipe.master_kind();
  std::vector<std::uint32_t> own;
  for (std::uint32_t p = 0; p < map.params(a.layer).size(); ++p)
    if (map.home(a.layer, p).layer == a.layer) own.push_back(p);
  for (const auto& s : map.layout().segments(a.layer, a.chunk))
    stream_->submit([this, &param = map.params(a.layer)[own[s.tensor]], s,
                     range = views.range(map.state(master, a.layer, a.chunk), map.options().recipe.dtype_of(master),
                                         s.chunk_element, s.elements)] { input_->weights(param, s.tensor_element, range); });
}

}  // namespace terrace
