// Causal flash attention, backward, bf16 on tensor cores, without atomics: three kernels, one after another, each of which
// writes what it alone computes, in a fixed order.
//
//   AttentionInner      Δ = rowsum(dout · out), kept where dq will be (its first four bytes), so that nobody needs scratch
//   AttentionKeyGrad    dk, dv of a tile of keys: loops over the query heads of its group, then over tiles of queries
//   AttentionQueryGrad  dq of a tile of queries: reads its Δ, loops over tiles of keys
//
// Both loops make the probabilities again from the log-sum-exp, 16 positions at a time: p = exp(scale · q·k − lse), ds = p ·
// (dout·v − Δ). So two of seven products are made twice; in return nothing is added up by atomics or in memory.
#pragma once

#include <type_traits>

#include <terrace/core/cuda/kernels/attention_args.h>
#include <terrace/core/cuda/kernels/attention_plain.h>
#include <terrace/core/cuda/kernels/fragments.h>

namespace terrace::cuda {

TERRACE_KERNEL float* inner_place(const AttentionArgs<bf16>& args, int batch, int position, int head) {
  return reinterpret_cast<float*>(args.dqkv + args.q_at(batch, position, head));
}

// A warp a row. Grid: x rows, y heads, z batch.
struct AttentionInner {
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp;

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const AttentionArgs<bf16>& args) const {
    const int position = lane.block_x() * kWarps + lane.warp(), head = lane.block_y(), batch = lane.block_z();
    if (position >= args.seq) return;
    const std::int64_t row = args.out_at(batch, position, head);
    float sum = 0;
    for (int d = lane.warp_lane(); d < args.head_dim; d += kWarp) sum += widen(args.dout[row + d]) * widen(args.out[row + d]);
    sum = warp_sum(lane, sum);
    if (lane.warp_lane() == 0) *inner_place(args, batch, position, head) = sum;
  }
};

// The rows that a warp multiplies with others, all of their columns, kTiles times 16 of them: as fragments in registers,
template <int kDim, int kTiles>
struct RowsInRegisters {
  template <class Lane>
  TERRACE_KERNEL void read(Lane& lane, SharedTile<kDim> tile) {
    TERRACE_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      TERRACE_UNROLL
      for (int k = 0; k < kDim / 16; ++k) load_a(lane, a[m][k], tile, (lane.warp() * kTiles + m) * 16, k * 16);
    }
  }
  template <class Lane>
  TERRACE_KERNEL void fragment(Lane&, std::uint32_t (&to)[4], int m, int k) const {
    TERRACE_UNROLL
    for (int i = 0; i < 4; ++i) to[i] = a[m][k][i];
  }
  std::uint32_t a[kTiles][kDim / 16][4];
};
// or, where registers end, in the tile.
template <int kDim, int kTiles>
struct RowsInShared {
  template <class Lane>
  TERRACE_KERNEL void read(Lane&, SharedTile<kDim> from) {
    tile = from;
  }
  template <class Lane>
  TERRACE_KERNEL void fragment(Lane& lane, std::uint32_t (&to)[4], int m, int k) const {
    load_a(lane, to, tile, (lane.warp() * kTiles + m) * 16, k * 16);
  }
  SharedTile<kDim> tile;
};

template <int kTiles, int kColumns>
TERRACE_KERNEL void clear(float (&d)[kTiles][kColumns][4]) {
  TERRACE_UNROLL
  for (int m = 0; m < kTiles; ++m) {
    TERRACE_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      TERRACE_UNROLL
      for (int i = 0; i < 4; ++i) d[m][n][i] = 0;
    }
  }
}

// d = rows · tile[16 positions from `first`]ᵀ
template <int kDim, int kTiles, class Rows, class Lane>
TERRACE_KERNEL void multiply_rows(Lane& lane, float (&d)[kTiles][2][4], const Rows& rows, SharedTile<kDim> tile, int first) {
  clear(d);
  TERRACE_UNROLL
  for (int k = 0; k < kDim / 16; ++k) {
    std::uint32_t b[4];
    load_b(lane, b, tile, first, k * 16);
    TERRACE_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      std::uint32_t a[4];
      rows.fragment(lane, a, m, k);
      lane.multiply(d[m][0], a, b[0], b[1]);
      lane.multiply(d[m][1], a, b[2], b[3]);
    }
  }
}

// d += weights · tile[16 positions from `first`]
template <int kDim, int kTiles, class Lane>
TERRACE_KERNEL void add_rows(Lane& lane, float (&d)[kTiles][kDim / 8][4], const float (&weights)[kTiles][2][4],
                             SharedTile<kDim> tile, int first) {
  std::uint32_t a[kTiles][4];
  TERRACE_UNROLL
  for (int m = 0; m < kTiles; ++m) pack_a(a[m], weights[m][0], weights[m][1]);
  TERRACE_UNROLL
  for (int n = 0; n < kDim / 8; n += 2) {
    std::uint32_t b[4];
    load_b_transposed(lane, b, tile, first, n * 8);
    TERRACE_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      lane.multiply(d[m][n], a[m], b[0], b[1]);
      lane.multiply(d[m][n + 1], a[m], b[2], b[3]);
    }
  }
}

// The warp's rows of a sum, times `factor`, into rows `stride` apart; of `valid` rows.
template <int kDim, int kTiles, class Lane>
TERRACE_KERNEL void store_rows(Lane& lane, bf16* to, std::int64_t stride, int valid, const float (&d)[kTiles][kDim / 8][4],
                               float factor) {
  TERRACE_UNROLL
  for (int m = 0; m < kTiles; ++m) {
    TERRACE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = m * 16 + row_of(lane, half * 2);
      if (row >= valid) continue;
      bf16* const at = to + row * stride + column_of(lane, 0);
      TERRACE_UNROLL
      for (int n = 0; n < kDim / 8; ++n) store_pair(at + n * 8, d[m][n][half * 2] * factor, d[m][n][half * 2 + 1] * factor);
    }
  }
}

// Grid: x tiles of keys, y groups, z batch. Scores stand transposed, keys down and queries across, so that probabilities go
// from the product that makes them into the one that uses them without leaving registers.
template <int kDim>
struct AttentionKeyGrad {
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp, kMinBlocks = 2;
  static constexpr int kTiles = kDim <= 64 ? 2 : 1;  // of 16 keys, a warp: as many sums as registers hold
  static constexpr int kKeys = kWarps * kTiles * 16, kQueries = 64;
  using Tile = SharedTile<kDim>;
  static constexpr bool kValuesInShared = kTiles == 2 && kDim > 32;
  using Keys = RowsInRegisters<kDim, kTiles>;
  using Values = std::conditional_t<kValuesInShared, RowsInShared<kDim, kTiles>, Keys>;
  // Two stages of queries and their dout, where keys (and values) pass through at the beginning, values that stay, then lse and
  // Δ of two stages.
  static constexpr int kStageRows = 2 * kQueries;
  static_assert(kKeys <= 2 * kStageRows);
  static constexpr std::size_t kRowsBytes = Tile::bytes(2 * kStageRows + (kValuesInShared ? kKeys : 0));
  static constexpr std::size_t kSharedBytes = kRowsBytes + 4 * kQueries * sizeof(float);

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const AttentionArgs<bf16>& args) const {
    const int first_key = lane.block_x() * kKeys, group = lane.block_y(), batch = lane.block_z();
    const int own_key = first_key + lane.warp() * kTiles * 16, heads = args.heads / args.kv_heads;
    const Tile rows{shared_as<bf16>(lane)};
    const auto queries = [&](int stage) { return Tile{rows.at(stage * kStageRows, 0)}; };
    const auto douts = [&](int stage) { return Tile{rows.at(stage * kStageRows + kQueries, 0)}; };
    float* const statistics = shared_as<float>(lane, kRowsBytes);  // [stage][lse, Δ][kQueries]

    Keys keys;
    Values values;
    read_rows(lane, args, keys, rows, args.k_at(batch, first_key, group), args.seq - first_key);
    read_rows(lane, args, values, Tile{rows.at(kValuesInShared ? 2 * kStageRows : 0, 0)}, args.v_at(batch, first_key, group),
              args.seq - first_key);

    // The heads of the group, and of each the tiles of queries that see these keys.
    const int first_query = first_key / kQueries * kQueries;
    Step now{group * heads, first_query, 0};
    const auto after = [&](const Step& step) {
      const bool same_head = step.query + kQueries < args.seq;
      return Step{same_head ? step.head : step.head + 1, same_head ? step.query + kQueries : first_query, step.stage ^ 1};
    };
    const auto copy = [&](const Step& step) {
      const int valid = args.seq - step.query;
      copy_tile<kQueries, kThreads>(lane, queries(step.stage), args.qkv + args.q_at(batch, step.query, step.head),
                                    args.qkv_stride(), valid);
      copy_tile<kQueries, kThreads>(lane, douts(step.stage), args.dout + args.out_at(batch, step.query, step.head),
                                    args.out_stride(), valid);
      lane.commit_copies();
    };
    // Threads 0 to 63 carry the lse of a step's queries, the others Δ. Beyond the sequence p becomes 0.
    static_assert(kThreads == 2 * kQueries);
    const auto statistic = [&](const Step& step) {
      const int query = step.query + lane.thread() % kQueries;
      if (lane.thread() < kQueries)
        return query < args.seq ? args.lse[args.lse_at(batch, query, step.head)] * kLog2E : INFINITY;
      return query < args.seq ? *inner_place(args, batch, query, step.head) : 0.0F;
    };

    float dk[kTiles][kDim / 8][4], dv[kTiles][kDim / 8][4];
    clear(dk);
    clear(dv);
    copy(now);
    float carried = statistic(now);
    for (; now.head < (group + 1) * heads; now = after(now)) {
      float* const of_step = statistics + now.stage * kThreads;
      of_step[lane.thread()] = carried;
      lane.wait_copies(Pending<0>{});
      lane.sync();  // this step's rows are here, those of before are used
      if (const Step next = after(now); next.head < (group + 1) * heads) {
        copy(next);
        carried = statistic(next);
      }
      for (int at = 0; at < kQueries; at += 16) {
        const int query = now.query + at;
        if (query + 16 <= own_key || query >= args.seq) continue;  // none of them sees a key of this warp
        float p[kTiles][2][4], ds[kTiles][2][4];
        multiply_rows<kDim>(lane, p, keys, queries(now.stage), at);
        multiply_rows<kDim>(lane, ds, values, douts(now.stage), at);
        TERRACE_UNROLL
        for (int m = 0; m < kTiles; ++m) {
          TERRACE_UNROLL
          for (int n = 0; n < 2; ++n) {
            TERRACE_UNROLL
            for (int i = 0; i < 4; ++i) {
              const int column = at + n * 8 + column_of(lane, i);
              p[m][n][i] = exp2_of(p[m][n][i] * (args.scale * kLog2E) - of_step[column]);
              if (now.query + column < own_key + m * 16 + row_of(lane, i)) p[m][n][i] = 0;
              ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - of_step[kQueries + column]);
            }
          }
        }
        add_rows<kDim>(lane, dv, p, douts(now.stage), at);
        add_rows<kDim>(lane, dk, ds, queries(now.stage), at);
      }
    }
    const int valid = args.seq - own_key;
    store_rows<kDim>(lane, args.dqkv + args.k_at(batch, own_key, group), args.qkv_stride(), valid, dk, args.scale);
    store_rows<kDim>(lane, args.dqkv + args.v_at(batch, own_key, group), args.qkv_stride(), valid, dv, 1);
  }

 private:
  struct Step {
    int head, query, stage;
  };
  template <class Rows, class Lane>
  TERRACE_KERNEL static void read_rows(Lane& lane, const AttentionArgs<bf16>& args, Rows& rows, Tile tile, std::int64_t at,
                                       int valid) {
    copy_tile<kKeys, kThreads>(lane, tile, args.qkv + at, args.qkv_stride(), valid);
    lane.commit_copies();
    lane.wait_copies(Pending<0>{});
    lane.sync();
    rows.read(lane, tile);
    lane.sync();
  }
};

// Grid: x tiles of queries, y heads, z batch.
template <int kDim>
struct AttentionQueryGrad {
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp, kMinBlocks = 2;
  static constexpr int kTiles = kDim <= 64 ? 2 : 1;
  static constexpr int kQueries = kWarps * kTiles * 16, kKeys = 64;
  using Tile = SharedTile<kDim>;
  static constexpr std::size_t kSharedBytes =
      Tile::bytes(4 * kKeys);  // two stages of keys and values; the queries' rows before them
  static_assert(2 * kQueries <= 4 * kKeys);

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const AttentionArgs<bf16>& args) const {
    // The last queries see the most keys, so they start first.
    const int first_query = (lane.blocks_x() - 1 - lane.block_x()) * kQueries, head = lane.block_y(), batch = lane.block_z();
    const int own_query = first_query + lane.warp() * kTiles * 16, group = args.group_of(head);
    const int end = first_query + kQueries < args.seq ? first_query + kQueries : args.seq;
    const Tile rows{shared_as<bf16>(lane)};
    const auto keys = [&](int stage) { return Tile{rows.at(2 * stage * kKeys, 0)}; };
    const auto values = [&](int stage) { return Tile{rows.at((2 * stage + 1) * kKeys, 0)}; };
    const auto copy = [&](int stage, int first) {
      const int valid = args.seq - first;
      copy_tile<kKeys, kThreads>(lane, keys(stage), args.qkv + args.k_at(batch, first, group), args.qkv_stride(), valid);
      copy_tile<kKeys, kThreads>(lane, values(stage), args.qkv + args.v_at(batch, first, group), args.qkv_stride(), valid);
      lane.commit_copies();
    };

    RowsInRegisters<kDim, kTiles> queries, douts;
    {
      const Tile dout_rows{rows.at(kQueries, 0)};
      const int valid = args.seq - first_query;
      copy_tile<kQueries, kThreads>(lane, rows, args.qkv + args.q_at(batch, first_query, head), args.qkv_stride(), valid);
      copy_tile<kQueries, kThreads>(lane, dout_rows, args.dout + args.out_at(batch, first_query, head), args.out_stride(),
                                    valid);
      lane.commit_copies();
      lane.wait_copies(Pending<0>{});
      lane.sync();
      queries.read(lane, rows);
      douts.read(lane, dout_rows);
      lane.sync();
    }
    float lse[kTiles][2], inner[kTiles][2];  // of this thread's rows; beyond the sequence p becomes 0
    TERRACE_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      TERRACE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int query = own_query + m * 16 + row_of(lane, half * 2);
        lse[m][half] = query < args.seq ? args.lse[args.lse_at(batch, query, head)] * kLog2E : INFINITY;
        inner[m][half] = query < args.seq ? *inner_place(args, batch, query, head) : 0;
      }
    }

    float dq[kTiles][kDim / 8][4];
    clear(dq);
    copy(0, 0);
    for (int first = 0, stage = 0; first < end; first += kKeys, stage ^= 1) {
      lane.wait_copies(Pending<0>{});
      lane.sync();  // this tile is here, that of before is used
      if (first + kKeys < end) copy(stage ^ 1, first + kKeys);
      for (int at = 0; at < kKeys; at += 16) {
        if (first + at >= own_query + kTiles * 16) break;  // this warp sees none of the others
        float p[kTiles][2][4], ds[kTiles][2][4];
        multiply_rows<kDim>(lane, p, queries, keys(stage), at);
        multiply_rows<kDim>(lane, ds, douts, values(stage), at);
        TERRACE_UNROLL
        for (int m = 0; m < kTiles; ++m) {
          TERRACE_UNROLL
          for (int n = 0; n < 2; ++n) {
            TERRACE_UNROLL
            for (int i = 0; i < 4; ++i) {
              const bool seen = first + at + n * 8 + column_of(lane, i) <= own_query + m * 16 + row_of(lane, i);
              const float weight = seen ? exp2_of(p[m][n][i] * (args.scale * kLog2E) - lse[m][i / 2]) : 0;
              ds[m][n][i] = weight * (ds[m][n][i] - inner[m][i / 2]);
            }
          }
        }
        add_rows<kDim>(lane, dq, ds, keys(stage), at);
      }
    }
    lane.sync_warp();  // Δ lies where dq goes: all of the warp have read it
    store_rows<kDim>(lane, args.dqkv + args.q_at(batch, own_query, head), args.qkv_stride(), args.seq - own_query, dq,
                     args.scale);
  }
};

}  // namespace terrace::cuda
