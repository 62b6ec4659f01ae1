// dk and dv of attention (attention_backward.h).
#pragma once

#include <type_traits>

#include <terrace/core/cuda/kernels/attention_rows.h>

namespace terrace::cuda {

// Grid: x tiles of keys, y groups, z batch. Scores are kept transposed (rows are keys, columns are queries), so that the
// probabilities can stay in registers between the product that computes them and the one that uses them. kQueryRows: queries of
// a stage; the bits are the same for all values.
template <int kDim, int kQueryRows = 64>
struct AttentionKeyGrad {
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp, kMinBlocks = 2;
  static constexpr int kTiles = kDim <= 64 ? 2 : 1;  // tiles of 16 keys per warp: as many sums as registers hold
  static constexpr int kKeys = kWarps * kTiles * 16, kQueries = kQueryRows;
  using Tile = SharedTile<kDim>;
  static constexpr bool kValuesInShared = kTiles == 2 && kDim > 32;
  using Keys = RowsInRegisters<kDim, kTiles>;
  using Values = std::conditional_t<kValuesInShared, RowsInShared<kDim, kTiles>, Keys>;
  // Two stages of queries and their dout; keys and (if they fit into registers) values pass through this space at the
  // beginning. Values that stay in shared memory follow, then lse and Δ of two stages.
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

    // Steps go over the heads of the group, and for each head over the tiles of queries that see these keys.
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
    // The first kQueries threads load the lse of a step's queries, the next ones Δ. Beyond the sequence, lse is such that p
    // becomes 0.
    static_assert(2 * kQueries <= kThreads);
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
      float* const of_step = statistics + now.stage * 2 * kQueries;
      if (lane.thread() < 2 * kQueries) of_step[lane.thread()] = carried;
      lane.wait_copies(Pending<0>{});
      lane.sync();  // this step's rows have arrived, and those of the step before are no longer needed
      if (const Step next = after(now); next.head < (group + 1) * heads) {
        copy(next);
        carried = statistic(next);
      }
      for (int at = 0; at < kQueries; at += 16) {
        const int query = now.query + at;
        if (query + 16 <= own_key || query >= args.seq) continue;  // no query of these sees a key of this warp
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
              p[m][n][i] = exp2_of(p[m][n][i] * (args.scores.factor * kLog2E) - of_step[column]);
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
    store_rows<kDim>(lane, args.dqkv + args.k_at(batch, own_key, group), args.qkv_stride(), valid, dk, args.scores.factor);
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

}  // namespace terrace::cuda
