#include <terrace/parallel/layers/ring_attention.h>

#include <algorithm>

namespace terrace::layers {

RingAttention::RingAttention(const Transformer& config, std::int64_t block) : Attention(config, block) {}

std::uint32_t RingAttention::hops(std::int64_t slice) const {
  const auto others = config_.context.ranks - 1;
  if (config_.window == 0) return others;
  // Of the slices behind, those whose last key the first query sees.
  const auto seen = (config_.window - 2 + slice) / slice;
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(seen, 0, others));
}

std::vector<AttentionBlock> RingAttention::blocks(std::uint32_t rank, BatchShape shape, std::uint32_t hops) const {
  const auto& context = config_.context;
  const auto own = context.runs(rank, shape.seq), came = context.runs((rank + context.ranks - hops) % context.ranks, shape.seq);
  std::vector<AttentionBlock> all;
  std::int64_t query = 0;
  for (const auto& q : own) {
    std::int64_t key = 0;
    for (const auto& k : came) {
      const AttentionBlock block{.batch = shape.batch,
                                 .heads = config_.heads_here(),
                                 .kv_heads = config_.kv_heads_here(),
                                 .head_dim = config_.head_dim(),
                                 .queries = {query, q.count, shape.seq},
                                 .keys = {key, k.count, shape.seq},
                                 .offset = q.begin - k.begin,
                                 .window = config_.window};
      if (block.pairs() != 0) all.push_back(block);
      key += k.count;
    }
    query += q.count;
  }
  return all;
}

std::int64_t RingAttention::pairs(std::uint32_t rank, std::int64_t slice, std::uint32_t hops) const {
  std::int64_t all = 0;
  for (const auto& block : blocks(rank, {1, slice}, hops)) all += block.pairs();
  return all;
}

// Of the last rank: without a window all have as much to do, and with one the first ranks have less. All count the same, so
// that they plan alike.
double RingAttention::products(BatchShape shape, std::uint32_t hops) const {
  return 4 * static_cast<double>(shape.batch * pairs(config_.context.ranks - 1, shape.seq, hops) * config_.attended_here());
}

double RingAttention::forward_flops(BatchShape shape) const {
  double flops = 2 * static_cast<double>(shape.tokens() * config_.hidden * (in_.outputs() + out_.inputs()));
  for (std::uint32_t i = 0; i <= hops(shape.seq); ++i) flops += products(shape, i);
  return flops;
}

std::vector<TensorSpec> RingAttention::work(LayerCall call, BatchShape shape) const {
  if (call != LayerCall::forward && call != LayerCall::backward) return {};
  const auto n = shape.tokens();
  const auto sums = accumulator_of(config_.dtype);
  const TensorSpec keys{"keys and values", config_.dtype, {n, keys_row()}},
      gradient{"gradient of keys and values", sums, {n, keys_row()}};
  if (call == LayerCall::forward) return {keys, keys, {"sum of attention's results", sums, {n, config_.attended_here()}}};
  return {keys,
          keys,
          gradient,
          gradient,
          {"gradient of attention's result", config_.dtype, {n, config_.attended_here()}},
          {"gradient of queries", sums, {n, config_.attended_here()}},
          gradient};
}

std::uint64_t RingAttention::finish_bytes(std::int64_t rows) const {
  ScratchArena arena;
  if (config_.dtype != accumulator_of(config_.dtype))
    for (const auto row : {config_.attended_here(), keys_row()}) arena.take(config_.dtype, {rows, row});
  return arena.peak_bytes();
}

std::uint64_t RingAttention::scratch_bytes(BatchShape shape) const {
  return std::max(Attention::scratch_bytes(shape), finish_bytes(shape.tokens()));
}

// A hop is issued before the attending beside which it runs.
std::vector<RingAttention::Step> RingAttention::steps(LayerCall call, std::int64_t slice) const {
  using What = Step::What;
  std::vector<Step> all;
  const auto last = hops(slice);
  for (std::uint32_t i = 0; i <= last; ++i) {
    if (i < last) all.push_back({What::keys_hop, i + 1});
    all.push_back({What::attend, i});
    if (call == LayerCall::forward) continue;
    if (i > 0) all.push_back({What::add, i});
    if (i < last) all.push_back({What::gradients_hop, i + 1});
  }
  if (call == LayerCall::forward) return all;
  if (last > 0) all.push_back({What::gradients_home, last + 1});
  all.push_back({What::finish});
  return all;
}

PhaseExchange RingAttention::hop(std::uint32_t from, std::uint32_t to, std::uint32_t places, std::int64_t elements) const {
  const auto [ranks, rank] = std::pair{config_.context.ranks, config_.context.rank};
  PhaseExchange exchange{kContextRanks, from, to, std::vector<std::int64_t>(ranks, 0), std::vector<std::int64_t>(ranks, 0)};
  exchange.sent[(rank + places) % ranks] = elements;
  exchange.received[(rank + ranks - places) % ranks] = elements;
  return exchange;
}

Phase RingAttention::phase(LayerCall call, BatchShape shape, const Step& step) const {
  using What = Step::What;
  const bool forward = call == LayerCall::forward;
  const auto i = step.hops, ranks = config_.context.ranks;
  const auto elements = shape.tokens() * keys_row();
  Phase phase{.half = forward ? Half::both : Half::input, .scratch_bytes = 0};
  const auto sum_of = [](std::uint32_t hops) { return hops == 0 ? Access::overwrite : Access::update; };
  switch (step.what) {
    case What::keys_hop: phase.exchange = hop(keys_of(i - 1), keys_of(i), 1, elements); break;
    case What::gradients_hop: phase.exchange = hop(gradient_of(i - 1), gradient_of(i), 1, elements); break;
    case What::gradients_home: phase.exchange = hop(gradient_of(i - 1), gradient_of(i), ranks - (i - 1), elements); break;
    case What::attend:
      phase.flops = (forward ? 1 : 2) * products(shape, i);
      phase.saved = forward ? Access::update : Access::read;
      phase.work = {{keys_of(i), Access::read}};
      if (forward)
        phase.work.push_back({kSum, sum_of(i)});
      else
        phase.work.insert(phase.work.end(), {{kDattended, Access::read},
                                             {kDqueries, sum_of(i)},
                                             {i == 0 ? std::uint32_t{kGradient} : kPart, Access::overwrite}});
      break;
    case What::add: phase.work = {{gradient_of(i), Access::update}, {kPart, Access::read}}; break;
    case What::finish:
      phase.carried = Access::overwrite;
      phase.work = {{kDqueries, Access::read}};
      phase.work.push_back({hops(shape.seq) == 0 ? std::uint32_t{kGradient} : gradient_of(hops(shape.seq) + 1), Access::read});
      phase.scratch_bytes = finish_bytes(shape.tokens());
      break;
  }
  return phase;
}

std::vector<Phase> RingAttention::middle_phases(LayerCall call, BatchShape shape) const {
  if (call != LayerCall::forward && call != LayerCall::backward) return {};
  std::vector<Phase> all;
  for (const auto& step : steps(call, shape.seq)) all.push_back(phase(call, shape, step));
  return all;
}

std::vector<std::uint32_t> RingAttention::begins_middle(LayerCall call) const {
  if (call == LayerCall::forward) return {kKeys};
  return {kKeys, kDattended};
}

void RingAttention::run_middle(LayerContext& ctx, const LayerTensors& t, LayerCall call, std::uint32_t number) const {
  const auto step = steps(call, ctx.shape.seq)[number];
  switch (step.what) {
    case Step::What::attend:
      return call == LayerCall::forward ? attend_to(ctx, t, step.hops) : attend_to_grad(ctx, t, step.hops);
    case Step::What::add: return ctx.math.convert(ctx.stream, t.work[gradient_of(step.hops)], t.work[kPart], Accumulate::yes);
    case Step::What::finish: return finish_grad(ctx, t);
    default: return;  // the engine exchanges
  }
}

void RingAttention::rotate_runs(LayerContext& ctx, TensorView qkv, bool inverse) const {
  std::int64_t row = 0;
  for (std::int64_t b = 0; b < ctx.shape.batch; ++b)
    for (const auto& [begin, count] : config_.context.runs(ctx.shape.seq)) {
      rotate(ctx, row_slice(qkv, row, count), begin, inverse);
      row += count;
    }
}

void RingAttention::pack_keys(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const {
  ctx.math.columns(ctx.stream, t.work[kKeys], 0, qkv, config_.attended_here(), keys_row());
}

void RingAttention::save_middle(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const {
  rotate_runs(ctx, qkv, false);
  pack_keys(ctx, t, qkv);
}

TensorView RingAttention::middle(LayerContext&, const LayerTensors& t, ScratchArena&) const { return t.saved[kAttended]; }

void RingAttention::middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView, TensorView dattended) const {
  ctx.math.convert(ctx.stream, t.work[kDattended], dattended);
  pack_keys(ctx, t, t.saved[kInResult]);
}

// Every query sees its own position, so what the own slice overwrites is all.
void RingAttention::attend_to(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const {
  std::int64_t begun = 0;
  for (const auto& block : blocks(config_.context.rank, ctx.shape, hops)) {
    const bool first = hops == 0 && block.queries.first == begun;
    if (first) begun += block.queries.count;
    ctx.math.attention_block(ctx.stream, block, t.work[kSum], t.saved[kLogSumExp], t.saved[kInResult], t.work[keys_of(hops)],
                             first ? Accumulate::no : Accumulate::yes);
  }
  if (hops == this->hops(ctx.shape.seq)) ctx.math.convert(ctx.stream, t.saved[kAttended], t.work[kSum]);
}

void RingAttention::attend_to_grad(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const {
  const auto& gradient = t.work[hops == 0 ? std::uint32_t{kGradient} : kPart];
  ctx.math.zero(ctx.stream, gradient);
  if (hops == 0) ctx.math.zero(ctx.stream, t.work[kDqueries]);
  for (const auto& block : blocks(config_.context.rank, ctx.shape, hops))
    ctx.math.attention_block_grad(ctx.stream, block, t.work[kDqueries], gradient, t.work[kDattended], t.saved[kAttended],
                                  t.saved[kLogSumExp], t.saved[kInResult], t.work[keys_of(hops)], Accumulate::yes,
                                  Accumulate::yes);
}

void RingAttention::finish_grad(LayerContext& ctx, const LayerTensors& t) const {
  constexpr std::size_t kDqkv = 0;  // of what ResidualBranch carries
  const auto last = hops(ctx.shape.seq);
  ScratchArena arena(ctx.scratch);
  std::int64_t column = 0;
  for (const auto& sum : {t.work[kDqueries], t.work[last == 0 ? std::uint32_t{kGradient} : gradient_of(last + 1)]}) {
    auto part = sum;
    if (sum.dtype != config_.dtype) {
      part = arena.take(config_.dtype, sum.shape);
      ctx.math.convert(ctx.stream, part, sum);
    }
    ctx.math.columns(ctx.stream, t.carried[kDqkv], column, part, 0, sum.shape[1]);
    column += sum.shape[1];
  }
  rotate_runs(ctx, t.carried[kDqkv], true);
}

}  // namespace terrace::layers
