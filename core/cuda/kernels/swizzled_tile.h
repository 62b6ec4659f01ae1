// Tiles of bf16 rows in shared memory, in the layout that a warpgroup's products read: panels of 64 columns (of 32 if the row
// length is no multiple of 64). The rows of a panel lie one below the other, swizzled by their width. The same layout can be
// read as rows along k and, transposed, as rows of k.
#pragma once

#include <cstddef>
#include <cstdint>

#include <terrace/core/cuda/arithmetic.h>
#include <terrace/core/cuda/lane.h>
#include <terrace/core/cuda/matrix_descriptor.h>

namespace terrace::cuda {

inline constexpr std::uint32_t kSwizzleAlignment = 1024;

template <int kRows, int kColumns>
struct SwizzledTile {
  static constexpr int kPanel = kColumns % 64 == 0 ? 64 : 32;
  static_assert(kColumns % kPanel == 0 && kRows % 16 == 0);
  static constexpr Swizzle kSwizzle = kPanel == 64 ? Swizzle::bytes128 : Swizzle::bytes64;
  static constexpr std::uint32_t kRowBytes = kPanel * sizeof(bf16), kPanelBytes = kRows * kRowBytes;
  static constexpr std::uint32_t kBytes = kColumns / kPanel * kPanelBytes;
  static_assert(kPanelBytes % kSwizzleAlignment == 0);

  // The address of eight elements; `column` must be a multiple of eight.
  TERRACE_KERNEL std::byte* at(int row, int column) const {
    return data + column / kPanel * kPanelBytes +
           swizzled(static_cast<std::uint32_t>(row) * kRowBytes + static_cast<std::uint32_t>(column % kPanel) * sizeof(bf16),
                    kSwizzle);
  }

  // The tile read as rows along k, from (row, 0) on; `row` must be a multiple of eight. columns_from() moves along k.
  template <class Lane>
  TERRACE_KERNEL MatrixDescriptor rows_from(Lane& lane, int row) const {
    return matrix_descriptor(lane.shared_address(data) + static_cast<std::uint32_t>(row) * kRowBytes, 16, 8 * kRowBytes,
                             kSwizzle);
  }
  TERRACE_KERNEL static MatrixDescriptor columns_from(MatrixDescriptor rows, int column) {
    return behind(rows, static_cast<std::uint32_t>(column / kPanel) * kPanelBytes +
                            static_cast<std::uint32_t>(column % kPanel) * static_cast<std::uint32_t>(sizeof(bf16)));
  }
  // All columns of the tile, read as rows of k; down() moves by rows.
  template <class Lane>
  TERRACE_KERNEL MatrixDescriptor transposed(Lane& lane) const {
    return matrix_descriptor(lane.shared_address(data), kPanelBytes, 8 * kRowBytes, kSwizzle);
  }
  TERRACE_KERNEL static MatrixDescriptor down(MatrixDescriptor from, int rows) {
    return behind(from, static_cast<std::uint32_t>(rows) * kRowBytes);
  }

  std::byte* data;  // aligned to kSwizzleAlignment
};

// The start of the first tile in a block's shared memory; up to kSwizzleAlignment bytes after shared().
template <class Lane>
TERRACE_KERNEL std::byte* swizzle_base(Lane& lane) {
  return lane.shared() + (-lane.shared_address(lane.shared()) & (kSwizzleAlignment - 1));
}

// Begins the copy of all rows, which lie `stride` elements apart; rows from `valid` on become zeros. All threads of the block
// call it, or as many as leave each thread with the same column, and the same place in the pattern, in every row.
template <int kThreads, int kRows, int kColumns, class Lane>
TERRACE_KERNEL void copy_tile(Lane& lane, SwizzledTile<kRows, kColumns> to, const bf16* from, std::int64_t stride, int valid) {
  constexpr int kPieces = kColumns / 8, kStep = kThreads / (8 * kPieces) * 8;
  static_assert(kStep > 0);
  if (kStep * kPieces < kThreads && lane.thread() >= kStep * kPieces) return;
  const int first = lane.thread() / kPieces, column = lane.thread() % kPieces * 8;
  from += first * stride + column;
  std::byte* const place = to.at(first, column);
  TERRACE_UNROLL
  for (int row = 0; row < kRows; row += kStep) {
    if (row + kStep > kRows && first + row >= kRows) break;
    lane.copy_async(place + row * to.kRowBytes, from, first + row < valid);
    from += kStep * stride;
  }
}

// After it, all copies so far, of all threads, have arrived and are visible to products; what was read before may be
// overwritten.
template <class Lane>
TERRACE_KERNEL void await_copies(Lane& lane) {
  lane.wait_copies(Pending<0>{});
  lane.fence_shared();
  lane.sync();
}

// Begins d = rows · tileᵀ. `rows`: 64 rows along k, a descriptor from Rows::rows_from().
template <class Rows, int kRows, int kColumns, class Lane>
TERRACE_KERNEL void begin_scores(Lane& lane, float (&d)[kRows / 8][4], MatrixDescriptor rows,
                                 SwizzledTile<kRows, kColumns> tile) {
  const auto all = tile.rows_from(lane, 0);
  TERRACE_UNROLL
  for (int k = 0; k < kColumns; k += 16) {
    lane.multiply_async(d, Rows::columns_from(rows, k), tile.columns_from(all, k), k > 0);
  }
  lane.commit_products();
}

// Begins d += weights · rows of the tile from `first` on, 16 rows for each fragment of weights.
template <int kSteps, int kRows, int kColumns, class Lane>
TERRACE_KERNEL void begin_sums(Lane& lane, float (&d)[kColumns / 8][4], const std::uint32_t (&weights)[kSteps][4],
                               SwizzledTile<kRows, kColumns> tile, int first = 0) {
  const auto all = tile.transposed(lane);
  TERRACE_UNROLL
  for (int k = 0; k < kSteps; ++k) lane.multiply_async_transposed(d, weights[k], tile.down(all, first + 16 * k), true);
  lane.commit_products();
}

}  // namespace terrace::cuda
