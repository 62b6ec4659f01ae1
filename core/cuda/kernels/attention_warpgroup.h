// Causal flash attention, forward, bf16 on the tensor cores of compute capability 9.0 (Shah et al.: "FlashAttention-3", 2024).
// A block computes the outputs of a tile of queries of one head, 64 of them for each warpgroup; keys and values pass in tiles
// of 128.
//
// Products run beside other computing: the product for the next tile's scores starts before the one that adds up this tile's
// values, and the softmax of the next tile is computed during the latter. Two tiles each of keys and values, one barrier per
// tile:
//
//   step j     keys j + 2 and values j + 1 are copied; scores of keys j + 1 and sums of values j are multiplied
//
// Keys come in ascending order: the first tile holds key 0, which every query sees, so that no maximum is ever -inf.
#pragma once

#include <terrace/core/cuda/kernels/attention_args.h>
#include <terrace/core/cuda/kernels/fragments.h>
#include <terrace/core/cuda/kernels/swizzled_tile.h>

namespace terrace::cuda {

template <int kDim>
struct WarpgroupAttention {
  static constexpr int kGroups = kDim <= 64 ? 3 : 2;  // as many warpgroups as registers hold
  static constexpr int kGroupThreads = 4 * kWarp, kThreads = kGroups * kGroupThreads, kMinBlocks = 1;
  static constexpr int kGroupQueries = 64, kQueries = kGroups * kGroupQueries, kKeys = 128;
  using Queries = SwizzledTile<kQueries, kDim>;
  using Tile = SwizzledTile<kKeys, kDim>;
  static constexpr std::size_t kSharedBytes = Queries::kBytes + 4 * Tile::kBytes + kSwizzleAlignment;

  // State of a warp for its 16 queries: scores, then probabilities, and these again, packed as operands of the product with
  // values; outputs; for each row the maximum and (this thread's part of) the sum.
  struct State {
    float scores[kKeys / 8][4];
    std::uint32_t probabilities[kKeys / 16][4];
    float out[kDim / 8][4];
    float maximum[2], sum[2];
  };

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const AttentionArgs<bf16>& args) const {
    // The last queries see the most keys, so they start first; heads that share keys run side by side.
    const int tile = lane.blocks_y() - 1 - lane.block_y(), head = lane.block_x(), batch = lane.block_z();
    const int first_query = tile * kQueries, group = args.group_of(head);
    const int group_query = lane.warp() / 4 * kGroupQueries;  // the warpgroup's first query, in the tile
    const int own_query = first_query + lane.warp() * 16;     // the warp's first query
    const int end = first_query + kQueries < args.seq ? first_query + kQueries : args.seq, tiles = (end + kKeys - 1) / kKeys;

    std::byte* const shared = swizzle_base(lane);
    const Queries queries{shared};
    const auto keys = [&](int stage) { return Tile{shared + Queries::kBytes + stage * Tile::kBytes}; };
    const auto values = [&](int stage) { return Tile{shared + Queries::kBytes + (2 + stage) * Tile::kBytes}; };
    const auto copy_keys = [&](int t) {
      copy_tile<kThreads>(lane, keys(t % 2), args.qkv + args.k_at(batch, t * kKeys, group), args.qkv_stride(),
                          args.seq - t * kKeys);
    };
    const auto copy_values = [&](int t) {
      copy_tile<kThreads>(lane, values(t % 2), args.qkv + args.v_at(batch, t * kKeys, group), args.qkv_stride(),
                          args.seq - t * kKeys);
    };
    const auto rows = queries.rows_from(lane, group_query);
    const float scale = args.scores.factor * kLog2E;

    copy_tile<kThreads>(lane, queries, args.qkv + args.q_at(batch, first_query, head), args.qkv_stride(),
                        args.seq - first_query);
    copy_keys(0);
    lane.commit_copies();
    copy_values(0);
    if (tiles > 1) copy_keys(1);
    lane.commit_copies();

    State s;
    begin(s);
    lane.wait_copies(Pending<1>{});
    lane.fence_shared();
    lane.sync();
    lane.fence_products();
    begin_scores<Queries>(lane, s.scores, rows, keys(0));
    lane.wait_products(Pending<0>{}, s.scores);
    if (kKeys > own_query) mask(lane, s, own_query, 0);
    float correction[2];
    weigh(lane, s, scale, correction);
    for (int t = 0; t < tiles - 1; ++t) {
      // The wait must come after the loop's jump: before it, the compiler would wait even before the softmax.
      lane.wait_products(Pending<0>{}, s.out);
      correct(s, correction);
      pack(s);
      await_copies(lane);  // keys t + 1 and values t have arrived; keys t and values t − 1 are no longer needed
      if (t + 2 < tiles) copy_keys(t + 2);
      copy_values(t + 1);
      lane.commit_copies();
      lane.fence_products();
      begin_scores<Queries>(lane, s.scores, rows, keys((t + 1) % 2));
      begin_sums(lane, s.out, s.probabilities, values(t % 2));
      lane.wait_products(Pending<1>{}, s.scores);
      if ((t + 2) * kKeys > own_query) mask(lane, s, own_query, (t + 1) * kKeys);
      weigh(lane, s, scale, correction);
    }
    lane.wait_products(Pending<0>{}, s.out);
    correct(s, correction);
    pack(s);
    await_copies(lane);
    lane.fence_products();
    begin_sums(lane, s.out, s.probabilities, values((tiles - 1) % 2));
    lane.wait_products(Pending<0>{}, s.out);
    finish(lane, s, args, batch, head, own_query);
  }

 private:
  TERRACE_KERNEL static void begin(State& s) {
    TERRACE_UNROLL
    for (int half = 0; half < 2; ++half) {
      s.maximum[half] = -INFINITY;
      s.sum[half] = 0;
    }
    TERRACE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      TERRACE_UNROLL
      for (int i = 0; i < 4; ++i) s.out[n][i] = 0;
    }
  }

  template <class Lane>
  TERRACE_KERNEL static void mask(Lane& lane, State& s, int own_query, int first_key) {
    TERRACE_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      TERRACE_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (first_key + n * 8 + column_of(lane, i) > own_query + row_of(lane, i)) s.scores[n][i] = -INFINITY;
      }
    }
  }

  // From scores to probabilities relative to the maximum so far. `correction` gets the factors for sums computed with an older
  // maximum.
  template <class Lane>
  TERRACE_KERNEL static void weigh(Lane& lane, State& s, float scale, float (&correction)[2]) {
    TERRACE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float maximum = s.maximum[half];
      TERRACE_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) maximum = fmaxf(maximum, fmaxf(s.scores[n][half * 2], s.scores[n][half * 2 + 1]));
      maximum = fmaxf(maximum, lane.shuffle_xor(maximum, 1));
      maximum = fmaxf(maximum, lane.shuffle_xor(maximum, 2));
      correction[half] = exp2_of((s.maximum[half] - maximum) * scale);
      s.maximum[half] = maximum;
      s.sum[half] *= correction[half];
      const float shift = maximum * scale;
      TERRACE_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        TERRACE_UNROLL
        for (int i = half * 2; i < half * 2 + 2; ++i) {
          s.scores[n][i] = exp2_of(s.scores[n][i] * scale - shift);
          s.sum[half] += s.scores[n][i];
        }
      }
    }
  }
  TERRACE_KERNEL static void correct(State& s, const float (&correction)[2]) {
    TERRACE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      TERRACE_UNROLL
      for (int i = 0; i < 4; ++i) s.out[n][i] *= correction[i / 2];
    }
  }
  TERRACE_KERNEL static void pack(State& s) {
    TERRACE_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) pack_a(s.probabilities[k], s.scores[2 * k], s.scores[2 * k + 1]);
  }

  template <class Lane>
  TERRACE_KERNEL static void finish(Lane& lane, State& s, const AttentionArgs<bf16>& args, int batch, int head, int own_query) {
    TERRACE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float sum = s.sum[half];
      sum += lane.shuffle_xor(sum, 1);
      sum += lane.shuffle_xor(sum, 2);
      const int query = own_query + row_of(lane, half * 2);
      if (query >= args.seq) continue;
      const float inverse = 1 / sum;
      bf16* const to = args.out + args.out_at(batch, query, head) + column_of(lane, 0);
      TERRACE_UNROLL
      for (int n = 0; n < kDim / 8; ++n) store_pair(to + n * 8, s.out[n][half * 2] * inverse, s.out[n][half * 2 + 1] * inverse);
      if (lane.warp_lane() % 4 == 0) {
        args.lse[args.lse_at(batch, query, head)] = s.maximum[half] * args.scores.factor + log_of(sum);
      }
    }
  }
};

}  // namespace terrace::cuda
