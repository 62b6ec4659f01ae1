#include <terrace/parallel/layers/attention/ulysses.h>

#include <algorithm>

namespace terrace::layers {

Ulysses::Ulysses(const Transformer& config, std::int64_t block)
    : Attention(config, block),
      deal_{config.heads_here(), config.kv_heads_here(), static_cast<int>(config.context().head_ranks())},
      ranks_(static_cast<int>(config.context().head_ranks())),
      rank_(static_cast<int>(config.context().head_rank())) {}

std::int64_t Ulysses::qkv_row(int rank) const {
  const auto [queries, keys] = deal_.of(rank);
  return (queries + 2 * keys) * config_.head_dim();
}

// The first rank has the most heads. All ranks reserve its room and count its products, so that their plans are equal.
std::vector<TensorSpec> Ulysses::saved_of_middle(BatchShape shape) const {
  const auto n = shape.tokens(), all = n * ranks_;
  return {{"q, k and v of this rank's heads", config_.dtype, {all, qkv_row(0)}},
          {"attention's result of this rank's heads", config_.dtype, {all, attended_row(0)}},
          {"log-sum-exp of scores", accumulator_of(config_.dtype), {shape.batch, deal_.queries(0).count, shape.seq * ranks_}},
          {"attention's result", config_.dtype, {n, config_.attended_here()}}};
}

std::vector<TensorSpec> Ulysses::middle_work(LayerCall call, BatchShape shape) const {
  const auto n = shape.tokens(), all = n * ranks_;
  std::int64_t dealt = 0;
  for (int r = 0; r < ranks_; ++r) dealt += qkv_row(r);
  const TensorSpec qkv{"q, k and v for each rank", config_.dtype, {n, dealt}},
      qkv_of_heads{"q, k and v by rank", config_.dtype, {all, qkv_row(0)}},
      attended{"attention's result for each rank", config_.dtype, {n, config_.attended_here()}},
      attended_of_heads{"attention's result by rank", config_.dtype, {all, attended_row(0)}};
  if (call == LayerCall::forward) return {qkv, qkv_of_heads, attended_of_heads, attended};
  return {attended, attended_of_heads, qkv_of_heads, qkv};
}

TensorView Ulysses::of_heads(BatchShape shape, const TensorView& room, std::int64_t row) const {
  return part(room, 0, {shape.tokens() * ranks_, row});
}

// The attention's products are shared as evenly as whole heads allow.
double Ulysses::middle_flops(BatchShape shape) const {
  return 2 * static_cast<double>(shape.tokens()) * ranks_ * pairs_twice(shape.seq * ranks_) *
         static_cast<double>(attended_row(0));
}

// Exchanges with all context ranks or, in a ring, with those of this rank's place in it.
PhaseExchange Ulysses::exchange(std::uint32_t from, std::uint32_t to, const Elements& sent, const Elements& received) const {
  const auto context = config_.context();
  const auto among_all = [&](const Elements& elements) {
    std::vector<std::int64_t> all(context.ranks, 0);
    for (int r = 0; r < ranks_; ++r)
      all[context.ring_rank() * context.head_ranks() + static_cast<std::uint32_t>(r)] = elements(r);
    return all;
  };
  return {.members = mesh::kContextRanks,
          .from = from,
          .to = to,
          .sent = among_all(sent),
          .received = among_all(received),
          .neighbours = context.ring == 1 ? 0 : context.head_ranks()};
}

void Ulysses::describe_middle(CallSteps& steps, LayerCall call, BatchShape shape) const {
  const bool forward = call == LayerCall::forward;
  const auto half = forward ? Half::both : Half::input;
  const auto n = shape.tokens();
  const auto to_heads = [&](int r) { return n * (forward ? qkv_row(r) : attended_row(r)); };
  const auto of_heads = [&](int) { return to_heads(rank_); };
  const auto of_positions = [&](int r) { return n * (forward ? attended_row(r) : qkv_row(r)); };
  const auto to_positions = [&](int) { return of_positions(rank_); };
  steps.exchange(half, exchange(kToHeads, kOfHeads, to_heads, of_heads));
  describe_heads(steps, call, shape);
  steps.exchange(half, exchange(kToPositions, kOfPositions, to_positions, of_positions));
  Phase end{.half = half, .work = {{kOfPositions, Access::read}}};
  forward ? end.saved = Access::update : end.carried = Access::overwrite;
  steps.compute(std::move(end), [=, this](LayerContext& ctx, const LayerTensors& t) {
    if (forward) return deal(ctx, t.saved[kHere], t.work[kOfPositions], Way::unpack, false);
    deal(ctx, t.carried[kDin], t.work[kOfPositions], Way::unpack, true);
    rotate_slice(ctx, t.carried[kDin], true);
  });
}

void Ulysses::describe_heads(CallSteps& steps, LayerCall call, BatchShape shape) const {
  const bool forward = call == LayerCall::forward;
  const double products = middle_flops(shape);
  const auto all = shape.tokens() * ranks_;
  const auto gradients = scratch_of({{"", config_.dtype, {all, attended_row(0)}}, {"", config_.dtype, {all, qkv_row(0)}}});
  steps.compute({.half = forward ? Half::both : Half::input,
                 .saved = forward ? Access::update : Access::read,
                 .work = {{kOfHeads, Access::read}, {kToPositions, Access::overwrite}},
                 .scratch_bytes = forward ? 0 : gradients,
                 .flops = forward ? products : 2 * products},
                [=, this](LayerContext& ctx, const LayerTensors& t) { attend_heads(ctx, t, forward); });
}

// If a key-value head has gone to several ranks, its gradient is the sum of theirs.
void Ulysses::deal(LayerContext& ctx, TensorView all, TensorView blocks, Way way, bool with_keys) const {
  const std::int64_t n = all.shape[0], dim = config_.head_dim();
  std::vector<bool> came(static_cast<std::size_t>(2 * deal_.kv_heads), false);
  std::int64_t first = 0;
  for (int r = 0; r < ranks_; ++r) {
    const auto row = with_keys ? qkv_row(r) : attended_row(r);
    const TensorView block = part(blocks, first, {n, row});
    first += n * row;
    const auto move = [&](std::int64_t of_all, std::int64_t of_block, std::int64_t heads, Accumulate how) {
      move_columns(ctx, way, all, of_all * dim, block, of_block * dim, heads * dim, way == Way::pack ? Accumulate::no : how);
    };
    const auto [begin, count] = deal_.queries(r);
    if (count == 0) continue;
    move(begin, 0, count, Accumulate::no);
    const auto keys = with_keys ? deal_.keys(r) : std::vector<std::int64_t>{};
    for (std::int64_t kind = 0; kind < 2; ++kind)  // keys, values
      for (std::size_t k = 0; k < keys.size(); ++k) {
        const auto key = static_cast<std::size_t>(kind * deal_.kv_heads + keys[k]);
        const auto taken = static_cast<std::int64_t>(keys.size());
        move(deal_.heads + kind * deal_.kv_heads + keys[k], count + kind * taken + static_cast<std::int64_t>(k), 1,
             came[key] ? Accumulate::yes : Accumulate::no);
        came[key] = true;
      }
  }
}

void Ulysses::order_positions(LayerContext& ctx, TensorView by_rank, TensorView by_sequence, Way way) const {
  const std::int64_t columns = by_rank.shape[1], slice = ctx.shape.seq * columns;
  if (columns == 0) return;
  for (std::int64_t r = 0; r < ranks_; ++r)
    for (std::int64_t b = 0; b < ctx.shape.batch; ++b) {
      const TensorView of_rank = part(by_rank, (r * ctx.shape.batch + b) * slice, {slice}),
                       of_sequence = part(by_sequence, (b * ranks_ + r) * slice, {slice});
      way == Way::pack ? ctx.math.convert(ctx.stream, of_rank, of_sequence)
                       : ctx.math.convert(ctx.stream, of_sequence, of_rank);
    }
}

void Ulysses::save_middle(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const {
  rotate_slice(ctx, qkv, false);
  deal(ctx, qkv, t.work[kToHeads], Way::pack, true);
}

void Ulysses::middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView, TensorView dattended) const {
  deal(ctx, dattended, t.work[kToHeads], Way::pack, false);
}

void Ulysses::attend_heads(LayerContext& ctx, const LayerTensors& t, bool forward) const {
  if (deal_.queries(rank_).count == 0) return;  // more ranks than heads
  const auto qkv_columns = qkv_row(rank_), attended_columns = attended_row(rank_);
  const auto in = [&](const TensorView& room, std::int64_t row) { return of_heads(ctx.shape, room, row); };
  const auto qkv = in(t.saved[kInResult], qkv_columns), attended = in(t.saved[kAttended], attended_columns);
  const auto shape = attention_shape({ctx.shape.batch, ctx.shape.seq * ranks_}, deal_.of(rank_));
  if (forward) {
    order_positions(ctx, in(t.work[kOfHeads], qkv_columns), qkv, Way::unpack);
    attend(ctx, shape, attended, log_sum_exp(ctx.shape, t), qkv);
    return order_positions(ctx, in(t.work[kToPositions], attended_columns), attended, Way::pack);
  }
  ScratchArena arena(ctx.scratch);
  const auto dattended = arena.take(config_.dtype, attended.shape), dqkv = arena.take(config_.dtype, qkv.shape);
  order_positions(ctx, in(t.work[kOfHeads], attended_columns), dattended, Way::unpack);
  attend_grad(ctx, shape, dqkv, dattended, attended, log_sum_exp(ctx.shape, t), qkv);
  order_positions(ctx, in(t.work[kToPositions], qkv_columns), dqkv, Way::pack);
}

TensorView Ulysses::log_sum_exp(BatchShape shape, const LayerTensors& t) const {
  return part(t.saved[kLogSumExp], 0, {shape.batch, deal_.queries(rank_).count, shape.seq * ranks_});
}

}  // namespace terrace::layers
