// dq of attention, bf16 on the tensor cores of compute capability 9.0 (attention_backward.h; Shah et al.: "FlashAttention-3",
// 2024). A block has a tile of queries of one head, 64 of them for each warpgroup; keys and values pass in tiles of 128.
//
// Probabilities are computed beside the product dout · v. Their gradients are computed in two halves, the second one beside the
// sums of dq of the first. The sums of the second half continue beside the next barrier and the next scores: so tiles of keys
// have three places.
#pragma once

#include <terrace/core/cuda/kernels/attention_rows.h>
#include <terrace/core/cuda/kernels/swizzled_tile.h>

namespace terrace::cuda {

// Grid: x heads, y tiles of queries, z batch.
template <int kDim>
struct WarpgroupQueryGrad {
  static constexpr int kGroups = 2, kGroupThreads = 4 * kWarp, kThreads = kGroups * kGroupThreads, kMinBlocks = 1;
  static constexpr int kGroupQueries = 64, kQueries = kGroups * kGroupQueries, kKeys = 128;
  static constexpr int kKeyStages = 3, kValueStages = 2;
  using Queries = SwizzledTile<kQueries, kDim>;
  using Tile = SwizzledTile<kKeys, kDim>;
  static constexpr std::size_t kSharedBytes =
      2 * Queries::kBytes + (kKeyStages + kValueStages) * Tile::kBytes + kSwizzleAlignment;

  // State of a warp for its 16 queries: scores, then probabilities; the products dout · v, then the gradients of the scores,
  // and these again, packed as operands of the product with keys; the sums; lse and Δ of each row.
  struct State {
    float scores[kKeys / 8][4], gradients[kKeys / 8][4];
    std::uint32_t weights[2][kKeys / 32][4];
    float dq[1][kDim / 8][4];
    float lse[2], inner[2];
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
    const Queries queries{shared}, douts{shared + Queries::kBytes};
    std::byte* const passing = shared + 2 * Queries::kBytes;
    const auto keys = [&](int stage) { return Tile{passing + stage * Tile::kBytes}; };
    const auto values = [&](int stage) { return Tile{passing + (kKeyStages + stage) * Tile::kBytes}; };
    const auto copy = [&](int t, int stage) {
      const int first = t * kKeys, valid = args.seq - first;
      copy_tile<kThreads>(lane, keys(stage), args.qkv + args.k_at(batch, first, group), args.qkv_stride(), valid);
      copy_tile<kThreads>(lane, values(t % kValueStages), args.qkv + args.v_at(batch, first, group), args.qkv_stride(), valid);
      lane.commit_copies();
    };

    copy_tile<kThreads>(lane, queries, args.qkv + args.q_at(batch, first_query, head), args.qkv_stride(),
                        args.seq - first_query);
    copy_tile<kThreads>(lane, douts, args.dout + args.out_at(batch, first_query, head), args.out_stride(),
                        args.seq - first_query);
    copy(0, 0);
    const auto query_rows = queries.rows_from(lane, group_query), dout_rows = douts.rows_from(lane, group_query);
    const float scale = args.scores.factor * kLog2E;

    State s;
    TERRACE_UNROLL
    for (int half = 0; half < 2; ++half) {  // beyond the sequence, lse is infinite, so p is 0
      const int query = own_query + row_of(lane, half * 2);
      s.lse[half] = query < args.seq ? args.lse[args.lse_at(batch, query, head)] * kLog2E : INFINITY;
      s.inner[half] = query < args.seq ? *inner_place(args, batch, query, head) : 0;
    }
    clear(s.dq);
    // No product is under way. The wait makes the compiler forget that the sums are zero; it would otherwise write the zeros
    // again in the loop.
    lane.wait_products(Pending<0>{}, s.dq[0]);
    for (int t = 0, stage = 0; t < tiles; ++t) {
      await_copies(lane);  // keys and values t have arrived; keys t − 2 and values t − 1 are no longer needed
      const int next_stage = stage + 1 < kKeyStages ? stage + 1 : 0;
      if (t + 1 < tiles) copy(t + 1, next_stage);
      lane.fence_products();
      begin_scores<Queries>(lane, s.scores, query_rows, keys(stage));
      begin_scores<Queries>(lane, s.gradients, dout_rows, values(t % kValueStages));
      lane.wait_products(Pending<1>{}, s.scores);
      weigh(s, scale);
      // The mask comes after the probabilities: its jump keeps the compiler from placing the wait before them.
      if ((t + 1) * kKeys > own_query) mask(lane, s, own_query, t * kKeys);
      lane.wait_products(Pending<0>{}, s.gradients);
      TERRACE_UNROLL
      for (int half = 0; half < 2; ++half) {  // the second half is computed beside the sums of the first
        derive(s, half);
        lane.fence_products();
        begin_sums(lane, s.dq[0], s.weights[half], keys(stage), half * kKeys / 2);
      }
      stage = next_stage;
    }
    lane.wait_products(Pending<0>{}, s.dq[0]);
    lane.sync_warp();  // Δ is stored where dq goes: by now, all threads of the warp have read it
    store_rows<kDim>(lane, args.dqkv + args.q_at(batch, own_query, head), args.qkv_stride(), args.seq - own_query, s.dq,
                     args.scores.factor);
  }

 private:
  // From scores to probabilities.
  TERRACE_KERNEL static void weigh(State& s, float scale) {
    TERRACE_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      TERRACE_UNROLL
      for (int i = 0; i < 4; ++i) s.scores[n][i] = exp2_of(s.scores[n][i] * scale - s.lse[i / 2]);
    }
  }
  template <class Lane>
  TERRACE_KERNEL static void mask(Lane& lane, State& s, int own_query, int first_key) {
    TERRACE_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      TERRACE_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (first_key + n * 8 + column_of(lane, i) > own_query + row_of(lane, i)) s.scores[n][i] = 0;
      }
    }
  }
  // From probabilities to the gradient of the scores, for half of the keys.
  TERRACE_KERNEL static void derive(State& s, int half) {
    TERRACE_UNROLL
    for (int k = 0; k < kKeys / 32; ++k) {
      const int n = half * kKeys / 16 + 2 * k;
      TERRACE_UNROLL
      for (int i = 0; i < 8; ++i) {
        float& gradient = s.gradients[n + i / 4][i % 4];
        gradient = s.scores[n + i / 4][i % 4] * (gradient - s.inner[i / 2 % 2]);
      }
      pack_a(s.weights[half][k], s.gradients[n], s.gradients[n + 1]);
    }
  }
};

}  // namespace terrace::cuda
