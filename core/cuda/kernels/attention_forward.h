// Causal flash attention, forward, bf16 on tensor cores (Dao: "FlashAttention-2", 2023): a block computes the outputs of a tile
// of queries of one head; keys and values pass in tiles, and the softmax is corrected as its maximum grows.
//
// The next tile is copied while this one is used. Keys come in ascending order: the first tile holds key 0, which every query
// sees, so that no maximum is ever -inf.
#pragma once

#include <type_traits>

#include <terrace/core/cuda/kernels/attention_rows.h>

namespace terrace::cuda {

// kRowTiles: tiles of 16 queries per warp. With several, one fragment of keys or values serves several products. With one, the
// queries stay in registers and leave their shared memory to keys and values. Both give the same bits.
template <int kDim, int kRowTiles = 2>
struct AttentionForward {
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp, kMinBlocks = 2;
  static constexpr int kTiles = kRowTiles;
  static constexpr bool kInRegisters = kTiles == 1;
  static constexpr int kQueries = kWarps * kTiles * 16, kKeys = kDim <= 64 ? 64 : 32;  // as many scores as registers hold
  using Tile = SharedTile<kDim>;
  using Queries = std::conditional_t<kInRegisters, RowsInRegisters<kDim, kTiles>, RowsInShared<kDim, kTiles>>;
  // Two stages of keys and values; the queries' rows lie before them unless they stay in registers.
  static constexpr int kFirstStage = kInRegisters ? 0 : kQueries;
  static_assert(kQueries <= kFirstStage + 4 * kKeys);
  static constexpr std::size_t kSharedBytes = Tile::bytes(kFirstStage + 4 * kKeys);

  // State of a warp for its queries: scores, outputs, and for each row the maximum and (this thread's part of) the sum.
  struct State {
    float scores[kTiles][kKeys / 8][4];
    float out[kTiles][kDim / 8][4];
    float maximum[kTiles][2], sum[kTiles][2];
  };

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const AttentionArgs<bf16>& args) const {
    // The last queries see the most keys, so they start first.
    const int first_query = (lane.blocks_x() - 1 - lane.block_x()) * kQueries, head = lane.block_y(), batch = lane.block_z();
    const int group = args.group_of(head), end = min_of(first_query + kQueries, args.seq);
    const int own_query = first_query + lane.warp() * kTiles * 16;  // the warp's first query
    const Tile rows{shared_as<bf16>(lane)};
    const auto keys = [&](int stage) { return Tile{rows.at(kFirstStage + 2 * stage * kKeys, 0)}; };
    const auto values = [&](int stage) { return Tile{rows.at(kFirstStage + (2 * stage + 1) * kKeys, 0)}; };
    const auto copy = [&](int stage, int first) {
      const int valid = args.seq - first;
      copy_tile<kKeys, kThreads>(lane, keys(stage), args.qkv + args.k_at(batch, first, group), args.qkv_stride(), valid);
      copy_tile<kKeys, kThreads>(lane, values(stage), args.qkv + args.v_at(batch, first, group), args.qkv_stride(), valid);
      lane.commit_copies();
    };

    copy_tile<kQueries, kThreads>(lane, rows, args.qkv + args.q_at(batch, first_query, head), args.qkv_stride(),
                                  args.seq - first_query);
    Queries queries;
    if constexpr (kInRegisters) {
      lane.commit_copies();
      lane.wait_copies(Pending<0>{});
      lane.sync();
    }
    queries.read(lane, rows);
    if constexpr (kInRegisters) lane.sync();  // all warps have read the queries: keys may overwrite them
    copy(0, 0);
    State s;
    begin(s);
    for (int first = 0, stage = 0; first < end; first += kKeys, stage ^= 1) {
      lane.wait_copies(Pending<0>{});
      lane.sync();  // this tile has arrived, and the one before is no longer needed
      if (first + kKeys < end) copy(stage ^ 1, first + kKeys);
      if (first >= own_query + kTiles * 16) continue;  // this warp sees no key of this tile
      score(lane, s, queries, keys(stage));
      if (first + kKeys > own_query) mask(lane, s, own_query, first);
      weigh(lane, s, args.scores.factor * kLog2E);
      gather(lane, s, values(stage));
    }
    finish(lane, s, args, batch, head, own_query);
  }

 private:
  TERRACE_KERNEL static int min_of(int a, int b) { return a < b ? a : b; }

  TERRACE_KERNEL static void begin(State& s) {
    TERRACE_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      TERRACE_UNROLL
      for (int half = 0; half < 2; ++half) {
        s.maximum[m][half] = -INFINITY;
        s.sum[m][half] = 0;
      }
      TERRACE_UNROLL
      for (int n = 0; n < kDim / 8; ++n) {
        TERRACE_UNROLL
        for (int i = 0; i < 4; ++i) s.out[m][n][i] = 0;
      }
    }
  }

  // scores = q · kᵀ
  template <class Lane>
  TERRACE_KERNEL static void score(Lane& lane, State& s, const Queries& queries, Tile keys) {
    TERRACE_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      TERRACE_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        TERRACE_UNROLL
        for (int i = 0; i < 4; ++i) s.scores[m][n][i] = 0;
      }
    }
    TERRACE_UNROLL
    for (int k = 0; k < kDim; k += 16) {
      std::uint32_t a[kTiles][4];
      TERRACE_UNROLL
      for (int m = 0; m < kTiles; ++m) queries.fragment(lane, a[m], m, k / 16);
      TERRACE_UNROLL
      for (int n = 0; n < kKeys / 8; n += 2) {
        std::uint32_t b[4];
        load_b(lane, b, keys, n * 8, k);
        TERRACE_UNROLL
        for (int m = 0; m < kTiles; ++m) {
          lane.multiply(s.scores[m][n], a[m], b[0], b[1]);
          lane.multiply(s.scores[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  template <class Lane>
  TERRACE_KERNEL static void mask(Lane& lane, State& s, int own_query, int first_key) {
    TERRACE_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      TERRACE_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        TERRACE_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (first_key + n * 8 + column_of(lane, i) > own_query + m * 16 + row_of(lane, i)) s.scores[m][n][i] = -INFINITY;
        }
      }
    }
  }

  // From scores to probabilities relative to the maximum so far; sums computed with an older maximum are corrected.
  template <class Lane>
  TERRACE_KERNEL static void weigh(Lane& lane, State& s, float scale) {
    float correction[kTiles][2];
    bool grew = false;
    TERRACE_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      TERRACE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float maximum = s.maximum[m][half];
        TERRACE_UNROLL
        for (int n = 0; n < kKeys / 8; ++n) {
          maximum = fmaxf(maximum, fmaxf(s.scores[m][n][half * 2], s.scores[m][n][half * 2 + 1]));
        }
        maximum = fmaxf(maximum, lane.shuffle_xor(maximum, 1));
        maximum = fmaxf(maximum, lane.shuffle_xor(maximum, 2));
        grew = grew || maximum != s.maximum[m][half];
        correction[m][half] = exp2_of((s.maximum[m][half] - maximum) * scale);
        s.maximum[m][half] = maximum;
      }
    }
    if (lane.any(grew)) correct(s, correction);  // rarely, once the sequence is long
    TERRACE_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      TERRACE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float shift = s.maximum[m][half] * scale;
        TERRACE_UNROLL
        for (int n = 0; n < kKeys / 8; ++n) {
          TERRACE_UNROLL
          for (int i = half * 2; i < half * 2 + 2; ++i) {
            s.scores[m][n][i] = exp2_of(s.scores[m][n][i] * scale - shift);
            s.sum[m][half] += s.scores[m][n][i];
          }
        }
      }
    }
  }
  TERRACE_KERNEL static void correct(State& s, const float (&correction)[kTiles][2]) {
    TERRACE_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      TERRACE_UNROLL
      for (int half = 0; half < 2; ++half) s.sum[m][half] *= correction[m][half];
      TERRACE_UNROLL
      for (int n = 0; n < kDim / 8; ++n) {
        TERRACE_UNROLL
        for (int i = 0; i < 4; ++i) s.out[m][n][i] *= correction[m][i / 2];
      }
    }
  }

  // out += probabilities · v
  template <class Lane>
  TERRACE_KERNEL static void gather(Lane& lane, State& s, Tile values) {
    TERRACE_UNROLL
    for (int k = 0; k < kKeys; k += 16) {
      std::uint32_t a[kTiles][4];
      TERRACE_UNROLL
      for (int m = 0; m < kTiles; ++m) pack_a(a[m], s.scores[m][k / 8], s.scores[m][k / 8 + 1]);
      TERRACE_UNROLL
      for (int n = 0; n < kDim / 8; n += 2) {
        std::uint32_t b[4];
        load_b_transposed(lane, b, values, k, n * 8);
        TERRACE_UNROLL
        for (int m = 0; m < kTiles; ++m) {
          lane.multiply(s.out[m][n], a[m], b[0], b[1]);
          lane.multiply(s.out[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  template <class Lane>
  TERRACE_KERNEL static void finish(Lane& lane, State& s, const AttentionArgs<bf16>& args, int batch, int head, int own_query) {
    TERRACE_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      TERRACE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float sum = s.sum[m][half];
        sum += lane.shuffle_xor(sum, 1);
        sum += lane.shuffle_xor(sum, 2);
        const int query = own_query + m * 16 + row_of(lane, half * 2);
        if (query >= args.seq) continue;
        const float inverse = 1 / sum;
        bf16* const to = args.out + args.out_at(batch, query, head) + column_of(lane, 0);
        TERRACE_UNROLL
        for (int n = 0; n < kDim / 8; ++n) {
          store_pair(to + n * 8, s.out[m][n][half * 2] * inverse, s.out[m][n][half * 2 + 1] * inverse);
        }
        if (lane.warp_lane() % 4 == 0) {
          args.lse[args.lse_at(batch, query, head)] = s.maximum[m][half] * args.scores.factor + log_of(sum);
        }
      }
    }
  }
};

}  // namespace terrace::cuda
