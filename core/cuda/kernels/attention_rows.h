// Parts of both loops of attention's backward: products of a warp's rows with tiles of 16 positions, and sums of such tiles,
// weighted by the results.
#pragma once

#include <terrace/core/cuda/kernels/attention_args.h>
#include <terrace/core/cuda/kernels/fragments.h>

namespace terrace::cuda {

// Δ of a row is stored where the row's dq will be.
TERRACE_KERNEL float* inner_place(const AttentionArgs<bf16>& args, int batch, int position, int head) {
  return reinterpret_cast<float*>(args.dqkv + args.q_at(batch, position, head));
}

// The kTiles · 16 rows that a warp multiplies with others, with all their columns: kept as fragments in registers,
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
// or in the tile, if the registers do not suffice.
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

// Stores the warp's rows of a sum, times `factor`, in rows that lie `stride` apart; only `valid` rows exist.
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

}  // namespace terrace::cuda
