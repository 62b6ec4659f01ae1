// Tiles of bf16 rows in shared memory as a warpgroup's products read them: panels of 64 columns (of 32 where the rows are no
// multiple of that), each panel's rows under one another and swizzled by their width. One layout serves as rows along k and,
// transposed, as rows of k.
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

  // Of the eight elements from a column that is a multiple of eight.
  TERRACE_KERNEL std::byte* at(int row, int column) const {
    return data + column / kPanel * kPanelBytes +
           swizzled(static_cast<std::uint32_t>(row) * kRowBytes + static_cast<std::uint32_t>(column % kPanel) * sizeof(bf16),
                    kSwizzle);
  }

  // Rows along k, from (row, 0), a multiple of eight; columns_from() moves on along k.
  template <class Lane>
  TERRACE_KERNEL MatrixDescriptor rows_from(Lane& lane, int row) const {
    return matrix_descriptor(lane.shared_address(data) + static_cast<std::uint32_t>(row) * kRowBytes, 16, 8 * kRowBytes,
                             kSwizzle);
  }
  TERRACE_KERNEL static MatrixDescriptor columns_from(MatrixDescriptor rows, int column) {
    return behind(rows, static_cast<std::uint32_t>(column / kPanel) * kPanelBytes +
                            static_cast<std::uint32_t>(column % kPanel) * static_cast<std::uint32_t>(sizeof(bf16)));
  }
  // Rows of k, all columns; down() moves on by rows.
  template <class Lane>
  TERRACE_KERNEL MatrixDescriptor transposed(Lane& lane) const {
    return matrix_descriptor(lane.shared_address(data), kPanelBytes, 8 * kRowBytes, kSwizzle);
  }
  TERRACE_KERNEL static MatrixDescriptor down(MatrixDescriptor from, int rows) {
    return behind(from, static_cast<std::uint32_t>(rows) * kRowBytes);
  }

  std::byte* data;  // aligned to kSwizzleAlignment
};

// Begins the copy of all rows, which lie `stride` elements apart; those from `valid` on are zeros. By the whole block.
template <int kThreads, int kRows, int kColumns, class Lane>
TERRACE_KERNEL void copy_tile(Lane& lane, SwizzledTile<kRows, kColumns> to, const bf16* from, std::int64_t stride, int valid) {
  constexpr int kPieces = kColumns / 8, kAll = kRows * kPieces, kStep = kThreads / kPieces;
  if constexpr (kThreads % kPieces == 0 && kStep % 8 == 0) {  // a thread keeps its column, and its place in the pattern
    const int first = lane.thread() / kPieces, column = lane.thread() % kPieces * 8;
    from += first * stride + column;
    std::byte* const place = to.at(first, column);
    TERRACE_UNROLL
    for (int row = 0; row < kRows; row += kStep) {
      if (row + kStep > kRows && first + row >= kRows) break;
      lane.copy_async(place + row * to.kRowBytes, from, first + row < valid);
      from += kStep * stride;
    }
  } else {
    TERRACE_UNROLL
    for (int i = 0; i < kAll; i += kThreads) {
      const int piece = i + lane.thread(), row = piece / kPieces, column = piece % kPieces * 8;
      if (i + kThreads > kAll && piece >= kAll) break;
      lane.copy_async(to.at(row, column), from + row * stride + column, row < valid);
    }
  }
}

}  // namespace terrace::cuda
