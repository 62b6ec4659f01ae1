// dq of attention (attention_backward.h).
#pragma once

#include <terrace/core/cuda/kernels/attention_rows.h>

namespace terrace::cuda {

// Grid: x tiles of queries, y heads, z batch. kKeyRows: keys per stage; the bits are the same for all values.
template <int kDim, int kKeyRows = 64>
struct AttentionQueryGrad {
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp, kMinBlocks = 2;
  static constexpr int kTiles = kDim <= 64 ? 2 : 1;
  static constexpr int kQueries = kWarps * kTiles * 16, kKeys = kKeyRows;
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
    float lse[kTiles][2], inner[kTiles][2];  // of this thread's rows; beyond the sequence, lse is infinite, so p is 0
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
      lane.sync();  // this tile has arrived, and the one before is no longer needed
      if (first + kKeys < end) copy(stage ^ 1, first + kKeys);
      for (int at = 0; at < kKeys; at += 16) {
        if (first + at >= own_query + kTiles * 16) break;  // this warp sees none of the remaining keys
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
              const float weight = seen ? exp2_of(p[m][n][i] * (args.scores.factor * kLog2E) - lse[m][i / 2]) : 0;
              ds[m][n][i] = weight * (ds[m][n][i] - inner[m][i / 2]);
            }
          }
        }
        add_rows<kDim>(lane, dq, ds, keys(stage), at);
      }
    }
    lane.sync_warp();  // Δ is stored where dq goes: by now, all threads of the warp have read it
    store_rows<kDim>(lane, args.dqkv + args.q_at(batch, own_query, head), args.qkv_stride(), args.seq - own_query, dq,
                     args.scores.factor);
  }
};

}  // namespace terrace::cuda
