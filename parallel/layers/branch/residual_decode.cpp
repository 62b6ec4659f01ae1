// The generation of a residual branch, for one position. In tiles it computes in the cache, from phase to phase, what a call in
// one phase computes in scratch.
#include <algorithm>

#include <terrace/parallel/layers/branch/residual_branch.h>

namespace terrace::layers {

// In one phase: a position's tensors in scratch.
struct ResidualBranch::Position {
  Position(const ResidualBranch& branch, ScratchArena& arena)
      : in_result(arena.take(branch.config_.dtype, {1, branch.in_.outputs()})),
        middle(arena.take(branch.config_.dtype, {1, branch.out_.inputs()})) {
    if (branch.result_norm_)
      of_norm = {arena.take(branch.config_.dtype, {1, branch.config_.hidden}), arena.take(branch.norm_.statistics(1))};
  }
  TensorView in_result, middle;
  ResultNorm::Saved of_norm;
};

std::vector<TensorSpec> ResidualBranch::cache(std::int64_t capacity) const {
  auto all = cache_of_middle(capacity);
  if (!in_.is_apart()) return all;
  if (!in_inner_tiles()) {
    all.push_back({in_result_ + " of a position", config_.dtype, {1, in_.outputs()}});
    all.push_back({"middle of a position", config_.dtype, {1, out_.inputs()}});
  }
  if (result_norm_) all.push_back({"input of the norm of a position's result", config_.dtype, {1, config_.hidden}});
  return all;
}

std::uint64_t ResidualBranch::decode_bytes() const {
  ScratchArena position, query_key;
  if (!in_.is_apart()) static_cast<void>(Position(*this, position));
  const auto norm = scratch_of({{"", config_.dtype, {1, config_.hidden}}, norm_.statistics(1)});
  for (const auto& spec : query_key_norm_.saved(1)) query_key.take(spec);
  const auto last = in_.tiles() - 1;
  return position.peak_bytes() +
         std::max({norm + in_.scratch_bytes(last, 1, Calls::forward), norm + out_.scratch_bytes(last, 1, Calls::forward),
                   query_key.peak_bytes() + query_key_norm_.scratch_bytes(1)});
}

void ResidualBranch::in_position(LayerContext& ctx, const LayerTensors& t, std::uint32_t tile, TensorView result,
                                 ScratchArena arena) const {
  const auto normed = arena.take(config_.dtype, {1, config_.hidden}), statistics = arena.take(norm_.statistics(1));
  norm_.forward(ctx, t.weights, normed, t.x, statistics);
  in_.forward(ctx, in_.prepare(ctx, t.weights, tile, 1, arena, Calls::forward), result, normed, Accumulate::no);
}

void ResidualBranch::norm_position(LayerContext& ctx, Tensors weights, TensorView qkv, ScratchArena arena) const {
  std::vector<TensorView> saved;
  for (const auto& spec : query_key_norm_.saved(1)) saved.push_back(arena.take(spec));
  query_key_norm_.forward(ctx, weights, qkv, saved, arena, {});
}

void ResidualBranch::describe_decode(CallSteps& steps) const {
  if (in_.tiles() > 1) return decode_in_tiles(steps);
  if (on_grid()) return;  // these ranks do not generate
  steps.compute(
      [this](LayerContext& ctx, const LayerTensors& t) {
        ScratchArena arena(ctx.scratch);
        const Position position(*this, arena);
        in_position(ctx, t, 0, position.in_result, arena);
        norm_position(ctx, t.weights, position.in_result, arena);
        make_middle(ctx, t, position.middle, position.in_result);
        run_out(ctx, t, {}, {}, position.middle, position.of_norm, bool{result_norm_}, arena);
      },
      decode_bytes());
}

void ResidualBranch::decode_in_tiles(CallSteps& steps) const {
  const auto in_cache = cache_of_middle(1).size(), middle_cache = in_cache + 1;
  each_turn(in_, {}, [&](const Turn& turn) {
    Phase phase{.weights = params_of(norm_, query_key_norm_),
                .x = true,
                .saved = Access::update,
                .scratch_bytes = decode_bytes(),
                .flops = turn_flops({1, 1}, in_, in_.outputs(), {}, turn),
                .float8_flops = float8(turn_flops({1, 1}, in_, in_.outputs(), {}, turn)),
                .float8_bytes = in_.rounding_bytes(true, 1, 0)};
    std::ranges::copy(in_.params(turn.tile), std::back_inserter(phase.weights));
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      const ScratchArena arena(ctx.scratch);
      const auto result = t.saved[in_cache];
      in_position(ctx, t, turn.tile, result, arena);
      if (!turn.last) return;
      norm_position(ctx, t.weights, result, arena);
      make_middle(ctx, t, t.saved[middle_cache], result);
    });
  });
  each_turn(out_, {}, [&](const Turn& turn) {
    const bool norms = turn.last && result_norm_;
    auto phase = out_phase(turn, norms);
    phase.scratch_bytes = decode_bytes();
    phase.flops = turn_flops({1, 1}, out_, out_.inputs(), {}, turn);
    phase.float8_flops = float8(phase.flops);
    phase.float8_bytes = out_.rounding_bytes(true, 1, 0);
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      ScratchArena arena(ctx.scratch);
      const ResultNorm::Saved of_norm{t.saved.back(), arena.take(norm_.statistics(1))};
      run_out(ctx, t, turn, {}, t.saved[middle_cache], of_norm, norms, arena);
    });
  });
}

}  // namespace terrace::layers
