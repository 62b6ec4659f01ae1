// dk and dv of attention, bf16 on the tensor cores of compute capability 9.0 (attention_backward.h; Shah et al.:
// "FlashAttention-3", 2024). A block has a tile of keys and values of one group, 64 of them for each warpgroup; queries and
// their dout pass in tiles, for one query head after another.
//
// Scores are kept transposed (rows are keys, columns are queries), so that the probabilities can stay in registers between the
// product that computes them and the one that uses them. At any time some product is under way:
//
//   probabilities    are computed beside the product dout · v
//   their gradient   is computed beside the sums of dv
//   the next barrier is waited for beside the sums of dk, which end during the next step: so tiles of queries have three places
#pragma once

#include <terrace/core/cuda/kernels/attention_rows.h>
#include <terrace/core/cuda/kernels/swizzled_tile.h>

namespace terrace::cuda {

// Grid: x groups, y tiles of keys, z batch.
template <int kDim>
struct WarpgroupKeyGrad {
  static constexpr int kGroups = 2, kGroupThreads = 4 * kWarp, kThreads = kGroups * kGroupThreads, kMinBlocks = 1;
  static constexpr int kGroupKeys = 64, kKeys = kGroups * kGroupKeys;
  static constexpr int kQueries = kDim <= 64 ? 96 : 64, kStages = 3;  // as many scores as registers hold
  using Keys = SwizzledTile<kKeys, kDim>;
  using Queries = SwizzledTile<kQueries, kDim>;
  static constexpr std::size_t kTileBytes = 2 * Keys::kBytes + 2 * kStages * Queries::kBytes;
  static constexpr int kStatistics = 2 * kQueries;  // of a step: lse, then Δ; those of two steps are stored after the tiles
  static constexpr std::size_t kSharedBytes = kTileBytes + 2 * kStatistics * sizeof(float) + kSwizzleAlignment;
  static_assert(kStatistics <= kThreads);

  // State of a warp for its 16 keys: scores, then probabilities; the products dout · v, then the gradients of the scores; both
  // again, packed as operands of the next products; the sums.
  struct State {
    float scores[kQueries / 8][4], gradients[kQueries / 8][4];
    std::uint32_t probabilities[kQueries / 16][4], weights[kQueries / 16][4];
    float dk[1][kDim / 8][4], dv[1][kDim / 8][4];
  };

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const AttentionArgs<bf16>& args) const {
    // The first keys are seen by the most queries, so their blocks start first.
    const int first_key = lane.block_y() * kKeys, group = lane.block_x(), batch = lane.block_z();
    const int group_key = lane.warp() / 4 * kGroupKeys;  // the warpgroup's first key, in the tile
    const int own_key = first_key + lane.warp() * 16;    // the warp's first key
    const int heads = args.heads / args.kv_heads, first_query = first_key / kQueries * kQueries;

    std::byte* const shared = swizzle_base(lane);
    const Keys keys{shared}, values{shared + Keys::kBytes};
    const auto queries = [&](int stage) { return Queries{shared + 2 * Keys::kBytes + 2 * stage * Queries::kBytes}; };
    const auto douts = [&](int stage) { return Queries{queries(stage).data + Queries::kBytes}; };
    float* const statistics = reinterpret_cast<float*>(shared + kTileBytes);

    // Steps go over the heads of the group, and for each head over the tiles of queries that see these keys.
    const auto after = [&](const Step& step) {
      const bool same_head = step.query + kQueries < args.seq;
      return Step{same_head ? step.head : step.head + 1, same_head ? step.query + kQueries : first_query,
                  step.stage + 1 < kStages ? step.stage + 1 : 0};
    };
    const auto copy = [&](const Step& step) {
      const int valid = args.seq - step.query;
      copy_tile<kThreads>(lane, queries(step.stage), args.qkv + args.q_at(batch, step.query, step.head), args.qkv_stride(),
                          valid);
      copy_tile<kThreads>(lane, douts(step.stage), args.dout + args.out_at(batch, step.query, step.head), args.out_stride(),
                          valid);
      lane.commit_copies();
    };
    // The first kQueries threads load the lse of a step's queries, the next ones Δ. Beyond the sequence, lse is such that p
    // becomes 0.
    const auto statistic = [&](const Step& step) {
      const int query = step.query + lane.thread() % kQueries;
      if (lane.thread() < kQueries)
        return query < args.seq ? args.lse[args.lse_at(batch, query, step.head)] * kLog2E : INFINITY;
      return query < args.seq && lane.thread() < kStatistics ? *inner_place(args, batch, query, step.head) : 0.0F;
    };

    const int end = (group + 1) * heads;
    Step now{group * heads, first_query, 0};
    copy_tile<kThreads>(lane, keys, args.qkv + args.k_at(batch, first_key, group), args.qkv_stride(), args.seq - first_key);
    copy_tile<kThreads>(lane, values, args.qkv + args.v_at(batch, first_key, group), args.qkv_stride(), args.seq - first_key);
    copy(now);
    float carried = statistic(now);
    const auto key_rows = keys.rows_from(lane, group_key), value_rows = values.rows_from(lane, group_key);
    const float scale = args.scores.factor * kLog2E;

    State s;
    clear(s.dk), clear(s.dv);
    // No product is under way. The wait makes the compiler forget that the sums are zero; it would otherwise write the zeros
    // again in the loop.
    lane.wait_products(Pending<0>{}, s.dk[0], s.dv[0]);
    for (int parity = 0; now.head < end; parity ^= 1) {
      float* const of_step = statistics + parity * kStatistics;
      if (lane.thread() < kStatistics) of_step[lane.thread()] = carried;
      await_copies(lane);  // this step's rows have arrived, and those of two steps before are no longer needed
      const Step next = after(now);
      if (next.head < end) {
        copy(next);
        carried = statistic(next);
      }
      lane.fence_products();
      begin_scores<Keys>(lane, s.scores, key_rows, queries(now.stage));
      begin_scores<Keys>(lane, s.gradients, value_rows, douts(now.stage));
      lane.wait_products(Pending<1>{}, s.scores);
      if (now.query < first_key + kKeys) mask(lane, s, own_key, now.query);
      weigh(lane, s, scale, of_step);
      lane.fence_products();
      begin_sums(lane, s.dv[0], s.probabilities, douts(now.stage));
      lane.wait_products(Pending<1>{}, s.gradients);
      derive(lane, s, of_step + kQueries);
      lane.fence_products();
      begin_sums(lane, s.dk[0], s.weights, queries(now.stage));
      now = next;
    }
    lane.wait_products(Pending<0>{}, s.dk[0], s.dv[0]);
    const int valid = args.seq - own_key;
    store_rows<kDim>(lane, args.dqkv + args.k_at(batch, own_key, group), args.qkv_stride(), valid, s.dk, args.scores.factor);
    store_rows<kDim>(lane, args.dqkv + args.v_at(batch, own_key, group), args.qkv_stride(), valid, s.dv, 1);
  }

 private:
  struct Step {
    int head, query, stage;
  };

  template <class Lane>
  TERRACE_KERNEL static void mask(Lane& lane, State& s, int own_key, int query) {
    TERRACE_UNROLL
    for (int n = 0; n < kQueries / 8; ++n) {
      TERRACE_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (query + n * 8 + column_of(lane, i) < own_key + row_of(lane, i)) s.scores[n][i] = -INFINITY;
      }
    }
  }
  // From scores to probabilities.
  template <class Lane>
  TERRACE_KERNEL static void weigh(Lane& lane, State& s, float scale, const float* lse) {
    TERRACE_UNROLL
    for (int n = 0; n < kQueries / 8; ++n) {
      const auto of = pair_of(lane, lse, n);
      TERRACE_UNROLL
      for (int i = 0; i < 4; ++i) s.scores[n][i] = exp2_of(s.scores[n][i] * scale - (i % 2 == 0 ? of.even : of.odd));
    }
    TERRACE_UNROLL
    for (int k = 0; k < kQueries / 16; ++k) pack_a(s.probabilities[k], s.scores[2 * k], s.scores[2 * k + 1]);
  }
  // From probabilities to the gradient of the scores.
  template <class Lane>
  TERRACE_KERNEL static void derive(Lane& lane, State& s, const float* inner) {
    TERRACE_UNROLL
    for (int n = 0; n < kQueries / 8; ++n) {
      const auto of = pair_of(lane, inner, n);
      TERRACE_UNROLL
      for (int i = 0; i < 4; ++i) s.gradients[n][i] = s.scores[n][i] * (s.gradients[n][i] - (i % 2 == 0 ? of.even : of.odd));
    }
    TERRACE_UNROLL
    for (int k = 0; k < kQueries / 16; ++k) pack_a(s.weights[k], s.gradients[2 * k], s.gradients[2 * k + 1]);
  }

  // Two neighbouring queries among eight, those of this thread.
  struct alignas(8) Pair {
    float even, odd;
  };
  template <class Lane>
  TERRACE_KERNEL static Pair pair_of(Lane& lane, const float* statistics, int n) {
    return *reinterpret_cast<const Pair*>(statistics + n * 8 + column_of(lane, 0));
  }
};

}  // namespace terrace::cuda
