// Tiles of bf16 rows in shared memory, and their fragments for the tensor cores' product d[16,8] += a[16,16] · b[16,8].
//
// Rows are padded by 16 bytes, so that eight consecutive rows begin at eight different places modulo 128 bytes, and one pass
// loads a matrix. A swizzle would save those bytes (6 to 12 %) but cost an instruction per load, because offsets would no
// longer be constants.
#pragma once

#include <cstddef>
#include <cstdint>

#include <terrace/core/cuda/arithmetic.h>
#include <terrace/core/cuda/lane.h>

namespace terrace::cuda {

template <int kColumns>
struct SharedTile {
  static_assert(kColumns % 16 == 0);
  static constexpr int kStride = kColumns + 8;
  static constexpr std::size_t bytes(int rows) { return static_cast<std::size_t>(rows) * kStride * sizeof(bf16); }

  TERRACE_KERNEL bf16* at(int row, int column) const { return data + row * kStride + column; }
  bf16* data;
};

// Begins the copy of kRows rows that lie `stride` elements apart; rows from `valid` on become zeros. All threads of the block
// call it.
template <int kRows, int kThreads, int kColumns, class Lane>
TERRACE_KERNEL void copy_tile(Lane& lane, SharedTile<kColumns> to, const bf16* from, std::int64_t stride, int valid) {
  constexpr int kPieces = kColumns / 8, kAll = kRows * kPieces;
  if constexpr (kThreads % kPieces == 0) {  // each thread keeps its column, so one pointer is enough
    constexpr int kStep = kThreads / kPieces;
    static_assert(kRows % kStep == 0);
    const int first = lane.thread() / kPieces, column = lane.thread() % kPieces * 8;
    from += first * stride + column;
    bf16* const place = to.at(first, column);
    TERRACE_UNROLL
    for (int row = 0; row < kRows; row += kStep) {
      lane.copy_async(place + row * to.kStride, from, first + row < valid);
      from += kStep * stride;
    }
  } else {
    static_assert(kAll % kThreads == 0);
    TERRACE_UNROLL
    for (int i = 0; i < kAll; i += kThreads) {
      const int piece = i + lane.thread(), row = piece / kPieces, column = piece % kPieces * 8;
      lane.copy_async(to.at(row, column), from + row * stride + column, row < valid);
    }
  }
}

// a[16,16] from (row, column) of a tile.
template <int kColumns, class Lane>
TERRACE_KERNEL void load_a(Lane& lane, std::uint32_t (&a)[4], SharedTile<kColumns> tile, int row, int column) {
  lane.load_matrices(a, tile.at(row + lane.warp_lane() % 16, column + lane.warp_lane() / 16 * 8));
}
// b[16,16], stored as rows of n: two adjacent b[16,8], the first in b[0], b[1].
template <int kColumns, class Lane>
TERRACE_KERNEL void load_b(Lane& lane, std::uint32_t (&b)[4], SharedTile<kColumns> tile, int n, int k) {
  lane.load_matrices(b, tile.at(n + lane.warp_lane() % 8 + lane.warp_lane() / 16 * 8, k + lane.warp_lane() / 8 % 2 * 8));
}
// The same, stored as rows of k.
template <int kColumns, class Lane>
TERRACE_KERNEL void load_b_transposed(Lane& lane, std::uint32_t (&b)[4], SharedTile<kColumns> tile, int k, int n) {
  lane.load_matrices_transposed(b, tile.at(k + lane.warp_lane() % 16, n + lane.warp_lane() / 16 * 8));
}

// The place of element i of a thread's d: row 0 to 15, column 0 to 7.
template <class Lane>
TERRACE_KERNEL int row_of(Lane& lane, int i) {
  return lane.warp_lane() / 4 + i / 2 * 8;
}
template <class Lane>
TERRACE_KERNEL int column_of(Lane& lane, int i) {
  return lane.warp_lane() % 4 * 2 + i % 2;
}

// Rounds and stores two neighbours of a row; the address is aligned to 4 bytes.
TERRACE_KERNEL void store_pair(bf16* to, float low, float high) {
  *reinterpret_cast<std::uint32_t*>(to) = bf16_pair(low, high);
}
// Rounds two adjacent d[16,8] and packs them as an a[16,16].
TERRACE_KERNEL void pack_a(std::uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = bf16_pair(left[0], left[1]);
  a[1] = bf16_pair(left[2], left[3]);
  a[2] = bf16_pair(right[0], right[1]);
  a[3] = bf16_pair(right[2], right[3]);
}

}  // namespace terrace::cuda
