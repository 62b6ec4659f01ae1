#include <terrace/parallel/run/compute.h>

#include <algorithm>
#include <stdexcept>

#include <terrace/core/base/units.h>
#include <terrace/parallel/run/compute_views.h>

namespace terrace {

Compute::Compute(const Parts& parts) : parts_(parts), memory_(parts.device->host_memory()) {
  const auto& map = *parts_.map;
  auto* const apart = parts_.device->computes_on_host() ? nullptr : &parts_.device->memory();
  for (std::uint32_t u = 0; u < map.rounds().updates(); ++u) squares_.emplace_back(map.layout(), memory_, apart);
  const std::size_t losses = std::size_t{map.micro_batches()} * map.data().with_sequences();
  const auto tokens = std::size_t{map.micro_batches()} * static_cast<std::size_t>(map.options().shape.batch.tokens());
  std::size_t reports = 0;
  for (std::uint32_t l = 0; l < map.layers(); ++l) {
    report_.push_back(reports);
    reports += map.micro_batches() * static_cast<std::size_t>(map.phases().facts(l).report_size);
  }
  const auto router = router_sums_of(map.model());
  slots_ = memory_->allocate((losses + router + reports) * sizeof(double) + 2 * tokens * sizeof(std::int32_t));
  auto* const doubles = reinterpret_cast<double*>(slots_.data());
  auto* const ids = reinterpret_cast<std::int32_t*>(doubles + losses + router + reports);
  losses_ = {doubles, losses};
  router_ = {doubles + losses, router};
  reports_ = {doubles + losses + router, reports};
  std::ranges::fill(reports_, 0.0);  // before the first forward, no expert has a row
  tokens_ = {ids, tokens};
  targets_ = {ids + tokens, tokens};
  if (apart) ids_apart_ = apart->allocate(round_up(2 * tokens * sizeof(std::int32_t), kPageBytes));
}

// Operations that a failed program left in the streams may still use this memory.
Compute::~Compute() {
  for (auto* const stream : parts_.streams) {
    if (!stream) continue;
    try {
      stream->synchronize();
    } catch (...) {  // the waiters of the stream have seen the error
    }
  }
}

void Compute::begin(const StepInput& input) {
  const auto take = [](std::span<const std::int32_t> from, std::span<std::int32_t> to) {
    if (from.size() > to.size()) throw std::logic_error("Compute: more tokens than the program has micro-batches for");
    std::ranges::copy(from, to.begin());
  };
  take(input.tokens, tokens_);
  take(input.targets, targets_);
  upload_ids(input);
  if (!input.document_begins.empty() && input.document_begins.size() != input.tokens.size() * parts_.map->data().context)
    throw std::logic_error("Compute: the documents are not those of all positions of the tokens' sequences");
  input_ = &input;
  has_norms_ = false;
  std::ranges::fill(losses_, 0.0);
  std::ranges::fill(router_, 0.0);
  verdicts_.assign(squares_.size(), {});
  // Some blocks are never written here: those of frozen tensors, and those that other ranks compute, for which the all-reduce
  // needs zeros.
  for (auto& squares : squares_) squares.clear(parts_.device->math(), stream_on(Lane::compute));
}

void Compute::upload_ids(const StepInput& input) {
  const auto used = input.targets.empty() ? input.tokens.size() : tokens_.size() + input.targets.size();
  if (!ids_apart_.data() || used == 0) return;
  stream_on(Lane::compute)
      .copy(ids_apart_.data(), reinterpret_cast<const std::byte*>(tokens_.data()), used * sizeof(std::int32_t));
}

double Compute::loss_sum() const {
  double sum = 0;
  for (const double loss : losses_) sum += loss;
  return sum;
}

// Computed from sums over all tokens of a layer, so that the division into micro-batches and slices does not matter.
RouterResult Compute::router() const {
  RouterResult result;
  const auto* numbers = router_.data();
  double layers = 0;
  for (const auto& layer : parts_.map->model().layers) {
    const auto routing = layer->facts().routing;
    if (!routing) continue;
    const RoutingReport report{*routing};
    result.balance += report.balance(numbers);
    result.squares += numbers[RoutingReport::kSquares] / std::max(1.0, numbers[RoutingReport::kTokens]);
    result.dropped += numbers[RoutingReport::kDropped];
    numbers += report.size();
    ++layers;
  }
  if (layers == 0) return {};
  return {.balance = result.balance / layers, .squares = result.squares / layers, .dropped = result.dropped};
}

TensorView Compute::report_of(std::uint32_t layer, std::uint32_t micro_batch) const {
  const auto size = static_cast<std::size_t>(parts_.map->phases().facts(layer).report_size);
  if (size == 0) return {};
  return {reinterpret_cast<std::byte*>(reports_.subspan(report_[layer] + micro_batch * size, size).data()),
          DType::fp64,
          {static_cast<std::int64_t>(size)}};
}

bool Compute::has_nothing_to_do(const Action& action) const {
  const auto number = parts_.map->phases().phase(action).unless_zero;
  return number && report_of(action.layer, action.micro_batch).as<double>()[*number] == 0;
}

std::vector<double> Compute::losses() const {
  const auto& data = parts_.map->data();
  std::vector<double> mine;
  for (std::size_t i = data.turn; i < losses_.size(); i += data.with_sequences()) mine.push_back(losses_[i]);
  return mine;
}

double Compute::gradient_norm() const {
  if (!has_norms_ && parts_.map->pipeline().ranks == 1) return 0;  // a rank of a pipeline may have no layers
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
  if (!any_clips(groups) || (!has_norms_ && parts_.map->pipeline().ranks == 1)) return {};
  std::vector<double> norms(groups.size() + 1, 0.0);
  const auto norm_of = [&](std::int32_t group) {
    return squares_.back().norm(
        [&](std::uint32_t l, std::uint32_t t) { return parts_.map->layout().param_at(l, t).clip_group == group; });
  };
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (groups[g].clip) norms[g] = norm_of(static_cast<std::int32_t>(g));
  norms.back() = norm_of(-1);
  return norms;
}

void Compute::enqueue(const Action& action, std::span<const Use> uses, std::span<const std::uint64_t> offsets,
                      std::byte* base) {
  const auto& map = *parts_.map;
  const Views views(map, uses, offsets, base);
  if (has_phases(action.op) && map.phases().exchanges(action)) return communicate(action, views);
  switch (action.op) {
    case Op::norm: norm(action, views); break;
    case Op::update:
    case Op::early:
    case Op::prepare: {
      const auto starts = [&](const Use& use) {
        return rules::is_optimizer_state(map.chunks()[use.chunk].kind) && use.access == Access::overwrite;
      };
      const bool first = std::ranges::any_of(uses, starts);
      map.options().layer_unit ? update_layer(action, views, first) : update(action, views, first);
      break;
    }
    case Op::fill: fill(action, views); break;
    case Op::visit: visit(action, views); break;
    case Op::keep: keep(action, views); break;
    case Op::restore: restore(action, views); break;
    case Op::verdict: verdict(action); break;
    case Op::gather:
    case Op::exchange:
    case Op::reduce:
    case Op::send:
    case Op::receive:
    case Op::unify: communicate(action, views); break;
    default: layer(action, views); break;
  }
}

model::Documents Compute::documents_of(std::uint32_t micro_batch) const {
  if (input_->document_begins.empty()) return {};
  const auto& shape = parts_.map->options().shape.batch;
  const auto positions = shape.seq * parts_.map->data().context;
  const auto all = static_cast<std::size_t>(shape.batch * positions);
  return {input_->document_begins.subspan(micro_batch * all, all), positions};
}

LayerContext Compute::context_of(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const auto shape = map.options().shape.batch;
  const auto tokens = shape.tokens();
  const auto first = static_cast<std::size_t>(a.micro_batch) * static_cast<std::size_t>(tokens);
  auto* const all_ids = ids_apart_.data() ? ids_apart_.data() : reinterpret_cast<std::byte*>(tokens_.data());
  const auto ids = [&](std::size_t begin) -> TensorView {
    return {all_ids + (begin + first) * sizeof(std::int32_t), DType::i32, {tokens}};
  };
  const auto scratch_bytes = static_cast<std::int64_t>(map.chunks()[map.buffers().scratch(a)].bytes);
  const auto loss_scale =
      input_->loss_scales.empty() ? input_->loss_scale : input_->loss_scales[a.micro_batch / map.rounds().every];
  LayerContext ctx{
      .stream = stream_on(Lane::compute),
      .math = parts_.device->math(),
      .shape = shape,
      .tokens = ids(0),
      .targets = ids(tokens_.size()),
      .loss_scale = loss_scale,
      .loss = {reinterpret_cast<std::byte*>(&losses_[a.micro_batch * map.data().with_sequences() + map.data().turn]),
               DType::fp64,
               {1}},
      .scratch = {views.of(map.buffers().scratch(a)), DType::i32, {scratch_bytes / 4}},
      .evaluate = a.op == Op::evaluate,
      .phase = map.phases().number_for_layer(a),
      .half = mapping::halves_of(a.op),
      .position = input_->position,
      .report = report_of(a.layer, a.micro_batch),
      .documents = documents_of(a.micro_batch),
      .token_scale = input_->token_scales.empty() ? loss_scale : input_->token_scales[a.micro_batch / map.rounds().every]};
  if (const auto skip = map.skips().into(a.layer); skip != model::Skips::kNone)
    ctx.skip = views.activation(map.buffers().x(skip, a.micro_batch));
  return ctx;
}

// The tensor, or the room in which the call's steps find it instead.
TensorView in_room(const CallSteps& steps, PhaseTensor::Of tensor, std::span<const TensorView> work, TensorView otherwise) {
  const auto room = steps.room_of(tensor);
  return room ? work[*room] : otherwise;
}

void Compute::layer(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  const bool last = a.layer + 1 == map.layers();
  auto ctx = context_of(a, views);
  const auto weights = views.tensors(ChunkKind::parameter, a);
  const auto saved = map.buffers().saved_pack(a.layer).views(views.of(map.buffers().saved(a.layer, a.micro_batch)));
  const auto work = views.work(a);
  LayerTensors t{
      .weights = weights, .gradients = {}, .x = {}, .y = {}, .saved = saved, .dy = {}, .dx = {}, .carried = {}, .work = work};
  const auto& steps = map.phases().steps(a.layer, mapping::call_of(a.op));
  t.x = in_room(steps, PhaseTensor::Of::x, work, views.activation(map.buffers().x(a.layer, a.micro_batch)));
  if (is_backward(a.op)) return backward(a, views, ctx, t);
  if (a.op == Op::decode)
    t.y = last ? input_->logits : views.activation(map.buffers().x(a.layer + 1, 0));
  else if (is_forward(a.op) && !last)
    t.y =
        in_room(steps, PhaseTensor::Of::y, work,
                views.activation(a.op == Op::recompute ? map.buffers().spare() : map.buffers().x(a.layer + 1, a.micro_batch)));
  steps.run(ctx, t);
}

// `t` already has the tensors that a forward has.
void Compute::backward(const Action& a, const Views& views, LayerContext& ctx, LayerTensors& t) {
  const auto& map = *parts_.map;
  const auto half = mapping::halves_of(a.op);
  std::vector<TensorView> gradients;
  if (has(half, Half::weight)) gradients = views.tensors(ChunkKind::gradient, a);
  const auto carried = map.buffers().carried_pack(a.layer).views(views.of(map.buffers().carried(a.layer, a.micro_batch)));
  t.gradients = gradients;
  t.accumulate = map.rounds().begins_gradient(a.micro_batch) || map.data().folds_each() ? Accumulate::no : Accumulate::yes;
  t.carried = carried;
  const auto& steps = map.phases().steps(a.layer, LayerCall::backward);
  if (a.layer + 1 != map.layers())
    t.dy = in_room(steps, PhaseTensor::Of::dy, t.work, views.activation(map.buffers().d(a.layer + 1, a.micro_batch)));
  t.dx = in_room(steps, PhaseTensor::Of::dx, t.work, views.activation(map.buffers().d(a.layer, a.micro_batch)));
  if (const auto skip = map.skips().into(a.layer); skip != model::Skips::kNone)
    t.dskip = views.activation(map.buffers().e(skip, a.micro_batch));
  // If a skip also reads a result, the result's gradient has two parts.
  const auto add_part = [&](TensorView gradient, ChunkId part) {
    ctx.math.convert(ctx.stream, gradient, views.activation(part), Accumulate::yes);
  };
  const auto& phase = map.phases().phase(a);
  const bool input_half = has(half, Half::input) && has(phase.half, Half::input);
  if (input_half && map.phases().is_first(a) && map.adds_skip_before(a.layer, a.micro_batch))
    add_part(t.dy, map.buffers().e(a.layer + 1, a.micro_batch));
  steps.run(ctx, t);
  if (input_half && phase.dx && map.adds_skip_behind(a.layer, a.micro_batch))
    add_part(t.dx, map.buffers().e(a.layer, a.micro_batch));
}

// Goes tensor by tensor if this rank has the whole gradient, else chunk by chunk. Both give the same blocks of squares.
void Compute::norm(const Action& a, const Views& views) {
  const auto& map = *parts_.map;
  auto& math = parts_.device->math();
  const auto& layout = map.layout();
  const auto dtype = map.options().recipe.gradient;
  has_norms_ = true;
  // `chunk` holds the range; if it is a run's first chunk, the range may continue in the chunks after it.
  const auto take = [&](std::uint32_t chunk, std::uint32_t tensor, std::uint64_t chunk_element, std::uint64_t tensor_element,
                        std::uint64_t count) {
    const auto gradient = views.range(map.state(ChunkKind::gradient, a.layer, chunk), dtype, chunk_element, count);
    // The uses of a tied tensor are accumulated separately and added once, here.
    if (layout.is_tied(a.layer, tensor))
      math.convert(stream_on(Lane::compute), gradient, views.range(map.tied_gradient(chunk), dtype, chunk_element, count),
                   Accumulate::yes);
    // Only one rank counts a parameter.
    if (!map.pipeline().speaks_for(a.layer) || !model::acts_for(layout.param_at(a.layer, tensor), map.parts())) return;
    const auto origin = layout.place(a.layer, tensor).origin;
    const auto blocks = squares_.at(a.update).of(a.layer, tensor, tensor_element - origin, count);
    math.sum_of_squares(stream_on(Lane::compute), blocks.sums, gradient, blocks.first);
  };
  if (map.data().stage() == 0) {
    for (std::uint32_t t = 0; t < layout.tensors_of(a.layer); ++t) {
      const auto& place = layout.place(a.layer, t);
      if (layout.run_of(place).first != layout.runs_of(a.layer)[a.phase].first) continue;
      take(layout.run_of(place).first, t, layout.place_in_run(place), place.origin, place.elements);
    }
    return;
  }
  for (const auto chunk : map.final_gradients(a))
    for (const auto& s : layout.segments(a.layer, chunk)) take(chunk, s.tensor, s.chunk_element, s.tensor_element, s.elements);
}

}  // namespace terrace
