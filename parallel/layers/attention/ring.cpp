#include <terrace/parallel/layers/attention/ring.h>

#include <algorithm>

namespace terrace::layers {

Ring::Ring(const Transformer& config, std::int64_t window, Heads here, Heads room, std::uint32_t first_work)
    : context_(config.context()),
      window_(window),
      head_dim_(config.head_dim()),
      scores_(config.scores),
      dtype_(config.dtype),
      here_(here),
      room_(room),
      first_(first_work) {}

std::uint32_t hops_of(const ContextParallel& context, std::int64_t window, std::int64_t slice) {
  const auto others = context.ring - 1;
  if (window == 0) return others;
  // The number of earlier slices whose last key the first query sees.
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>((window - 2 + slice) / slice, 0, others));
}

PhaseExchange hop_of(const ContextParallel& context, std::uint32_t from, std::uint32_t to, std::uint32_t places,
                     std::int64_t elements) {
  PhaseExchange exchange{.members = mesh::kContextRanks,
                         .from = from,
                         .to = to,
                         .sent = std::vector<std::int64_t>(context.ranks, 0),
                         .received = std::vector<std::int64_t>(context.ranks, 0)};
  const auto at = [&](std::uint32_t place) {
    return (context.ring_rank() + place) % context.ring * context.head_ranks() + context.head_rank();
  };
  exchange.sent[at(places)] = elements;
  exchange.received[at(context.ring - places)] = elements;
  return exchange;
}

std::uint32_t Ring::hops(BatchShape shape) const { return hops_of(context_, window_, shape.seq); }

std::vector<Ring::Meeting> Ring::meetings(std::uint32_t rank, BatchShape shape, std::uint32_t hops) const {
  const auto own = context_.ring_runs(rank, shape.seq),
             came = context_.ring_runs((rank + context_.ring - hops) % context_.ring, shape.seq);
  std::vector<Meeting> all;
  std::int64_t query = 0;
  for (const auto& q : own) {
    std::int64_t key = 0;
    for (const auto& k : came) {
      const AttentionBlock block{.batch = shape.batch,
                                 .heads = here_.queries,
                                 .kv_heads = here_.keys,
                                 .head_dim = head_dim_,
                                 .queries = {query, q.count, shape.seq},
                                 .keys = {key, k.count, shape.seq},
                                 .offset = q.begin - k.begin,
                                 .window = window_,
                                 .scores = scores_};
      if (block.pairs() != 0) all.push_back({block, q.begin});
      key += k.count;
    }
    query += q.count;
  }
  return all;
}

template <class F>
void Ring::each_document(const model::Documents& documents, const Meeting& meeting, bool all_queries, F&& f) {
  const auto& [block, first_query] = meeting;
  if (documents.whole_sequences()) return f(block, comm::Block{0, block.batch});
  const auto first_key = first_query - block.offset;
  for (std::int64_t b = 0; b < block.batch; ++b)
    for (const auto& piece : documents.pieces(b, {first_query, block.queries.count})) {
      const auto from = std::max(first_key, piece.document),
                 to = std::min(first_key + block.keys.count, piece.begin + piece.count);
      auto part = block;
      part.batch = 1;
      part.queries.first += piece.begin - first_query;
      part.queries.count = piece.count;
      part.keys.first += from < to ? from - first_key : 0;
      part.keys.count = from < to ? to - from : 1;
      part.offset = from < to ? piece.begin - from : -piece.count;  // with no keys, one key after all queries stands in
      if (all_queries || part.pairs() != 0) f(part, comm::Block{b, 1});
    }
}

std::int64_t Ring::pairs(std::uint32_t rank, BatchShape shape, std::uint32_t hops) const {
  std::int64_t all = 0;
  for (const auto& meeting : meetings(rank, shape, hops)) all += meeting.block.pairs();
  return all;
}

// Counts those of the last rank: without a window all ranks have the same number, and with a window the first ranks have fewer.
double Ring::products(BatchShape shape, std::uint32_t hops) const {
  return 4 * static_cast<double>(shape.batch * pairs(context_.ring - 1, shape, hops) * queries_row(room_));
}

double Ring::forward_flops(BatchShape shape) const {
  double flops = 0;
  for (std::uint32_t i = 0; i <= hops(shape); ++i) flops += products(shape, i);
  return flops;
}

std::vector<TensorSpec> Ring::work(LayerCall call, BatchShape shape) const {
  const auto n = shape.tokens();
  const auto sums = accumulator_of(dtype_);
  const TensorSpec keys{"keys and values", dtype_, {n, keys_row(room_)}},
      gradient{"gradient of keys and values", sums, {n, keys_row(room_)}};
  if (call == LayerCall::forward) return {keys, keys, {"sum of attention's results", sums, {n, queries_row(room_)}}};
  return {keys,
          keys,
          gradient,
          gradient,
          {"gradient of attention's result", dtype_, {n, queries_row(room_)}},
          {"gradient of queries", sums, {n, queries_row(room_)}},
          gradient};
}

// A hop is issued before the attention that it overlaps with.
void Ring::describe(CallSteps& steps, LayerCall call, BatchShape shape, const Find& find) const {
  const bool forward = call == LayerCall::forward;
  const auto last = hops(shape);
  const auto pass = [&](std::uint32_t from, std::uint32_t to, std::uint32_t places) {
    const auto elements = shape.tokens() * keys_row(here_);
    steps.exchange(forward ? Half::both : Half::input, hop_of(context_, first_ + from, first_ + to, places, elements));
  };
  for (std::uint32_t i = 0; i <= last; ++i) {
    if (i < last) pass(keys_of(i), keys_of(i + 1), 1);
    forward ? describe_attend(steps, shape, find, i) : describe_attend_grad(steps, shape, find, i);
    if (!forward && i < last) pass(gradient_of(i), gradient_of(i + 1), 1);
  }
  if (!forward && last > 0) pass(gradient_of(last), gradient_of(last + 1), context_.ring - last);  // the gradients go home
}

void Ring::describe_attend(CallSteps& steps, BatchShape shape, const Find& find, std::uint32_t i) const {
  steps.compute({.saved = Access::update,
                 .work = {{first_ + keys_of(i), Access::read}, {first_ + kSum, i == 0 ? Access::overwrite : Access::update}},
                 .flops = products(shape, i)},
                [=, this](LayerContext& ctx, const LayerTensors& t) { attend(ctx, shape, find(t), i); });
}

void Ring::describe_attend_grad(CallSteps& steps, BatchShape shape, const Find& find, std::uint32_t i) const {
  steps.compute({.half = Half::input,
                 .saved = Access::read,
                 .work = {{first_ + keys_of(i), Access::read},
                          {first_ + kDattended, Access::read},
                          {first_ + kDqueries, i == 0 ? Access::overwrite : Access::update},
                          {first_ + (i == 0 ? std::uint32_t{kGradient} : kPart), Access::overwrite}},
                 .flops = 2 * products(shape, i)},
                [=, this](LayerContext& ctx, const LayerTensors& t) { attend_grad(ctx, shape, find(t), i); });
  if (i == 0) return;
  steps.compute({.half = Half::input, .work = {{first_ + gradient_of(i), Access::update}, {first_ + kPart, Access::read}}},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  const auto row = keys_row(here_);
                  const auto of_ring = find(t);
                  ctx.math.convert(ctx.stream, filled(shape, of_ring, gradient_of(i), row), filled(shape, of_ring, kPart, row),
                                   Accumulate::yes);
                });
}

std::vector<std::uint32_t> Ring::begins(LayerCall call) const {
  return call == LayerCall::forward ? std::vector{first_ + kKeys} : std::vector{first_ + kKeys, first_ + kDattended};
}

void Ring::begin(LayerContext& ctx, const OfRing& t) const {
  const auto rows = t.qkv.shape[0], row = keys_row(here_);
  ctx.math.columns(ctx.stream, part(t.work[first_ + kKeys], 0, {rows, row}), 0, t.qkv, t.qkv.shape[1] - row, row);
}

TensorView Ring::gradient(BatchShape shape, const OfRing& t) const { return filled(shape, t, kDattended, queries_row(here_)); }

TensorView Ring::rows_of(BatchShape shape, const TensorView& all, comm::Block sequences) {
  return row_slice(all, sequences.begin * shape.seq, sequences.count * shape.seq);
}
TensorView Ring::sums_of(BatchShape shape, const TensorView& lse, comm::Block sequences) const {
  return part(lse, sequences.begin * here_.queries * shape.seq, {sequences.count, here_.queries, shape.seq});
}

// Every query sees its own position, so the own slice begins the sums of all queries.
void Ring::attend(LayerContext& ctx, BatchShape shape, const OfRing& t, std::uint32_t hops) const {
  const auto sum = filled(shape, t, kSum, queries_row(here_)), keys = filled(shape, t, keys_of(hops), keys_row(here_));
  std::int64_t begun = 0;
  for (const auto& meeting : meetings(context_.ring_rank(), shape, hops)) {
    const bool first = hops == 0 && meeting.block.queries.first == begun;
    if (first) begun += meeting.block.queries.count;
    each_document(ctx.documents, meeting, first, [&](const AttentionBlock& block, comm::Block sequences) {
      const auto of = [&](const TensorView& all) { return rows_of(shape, all, sequences); };
      ctx.math.attention_block(ctx.stream, block, of(sum), sums_of(shape, t.lse, sequences), of(t.qkv), of(keys),
                               first ? Accumulate::no : Accumulate::yes);
    });
  }
  if (hops == this->hops(shape)) ctx.math.convert(ctx.stream, t.attended, sum);
}

void Ring::attend_grad(LayerContext& ctx, BatchShape shape, const OfRing& t, std::uint32_t hops) const {
  const auto to = filled(shape, t, hops == 0 ? std::uint32_t{kGradient} : kPart, keys_row(here_)),
             dqueries = filled(shape, t, kDqueries, queries_row(here_)),
             keys = filled(shape, t, keys_of(hops), keys_row(here_));
  ctx.math.zero(ctx.stream, to);
  if (hops == 0) ctx.math.zero(ctx.stream, dqueries);
  for (const auto& meeting : meetings(context_.ring_rank(), shape, hops))
    each_document(ctx.documents, meeting, false, [&](const AttentionBlock& block, comm::Block sequences) {
      const auto of = [&](const TensorView& all) { return rows_of(shape, all, sequences); };
      ctx.math.attention_block_grad(ctx.stream, block, of(dqueries), of(to), of(gradient(shape, t)), of(t.attended),
                                    sums_of(shape, t.lse, sequences), of(t.qkv), of(keys), Accumulate::yes, Accumulate::yes);
    });
}

std::vector<PhaseWork> Ring::ends(BatchShape shape) const {
  return {{first_ + kDqueries, Access::read}, {first_ + last_gradient(shape), Access::read}};
}

std::uint64_t Ring::end_bytes(BatchShape shape) const {
  if (dtype_ == accumulator_of(dtype_)) return 0;
  const auto n = shape.tokens();
  return scratch_of({{"", dtype_, {n, queries_row(room_)}}, {"", dtype_, {n, keys_row(room_)}}});
}

void Ring::end(LayerContext& ctx, BatchShape shape, const OfRing& t, TensorView dqkv, ScratchArena& arena) const {
  std::int64_t column = 0;
  for (const auto& sum :
       {filled(shape, t, kDqueries, queries_row(here_)), filled(shape, t, last_gradient(shape), keys_row(here_))}) {
    auto rounded = sum;
    if (sum.dtype != dtype_) {
      rounded = arena.take(dtype_, sum.shape);
      ctx.math.convert(ctx.stream, rounded, sum);
    }
    ctx.math.columns(ctx.stream, dqkv, column, rounded, 0, sum.shape[1]);
    column += sum.shape[1];
  }
}

}  // namespace terrace::layers
