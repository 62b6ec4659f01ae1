// Rounds a matrix to numbers of 8 bits (core/math/float8.h), with the same bits as on the CPU: first the greatest magnitude of
// each part of the matrix, then the codes, tile by tile. The second kernel reads the matrix once, whether it writes the codes
// as they are, transposed or both; each of its blocks finds the scale by itself.
#pragma once

#include <terrace/core/cuda/arithmetic.h>
#include <terrace/core/cuda/kernels/block_sums.h>
#include <terrace/core/cuda/kernels/vectors.h>
#include <terrace/core/math/float8.h>

namespace terrace::cuda {

template <class T>
struct QuantiseArgs {
  const T* x;
  std::int64_t rows, columns, stride;  // of x as stored
  std::uint32_t* greatest;             // one for each part: bits of a magnitude
  std::int32_t parts;
  bool whole_words, whole_codes;  // rows of x, or of codes and turned, begin at multiples of 16 bytes
  math::Float8Format format;
  std::uint8_t *codes, *turned;  // of x, and of the transposed x; one may be null
  std::int64_t codes_stride, turned_stride;
  float* scale;
};

// Part p has the rows p, p + parts, ….
template <class T>
struct GreatestMagnitude {
  static constexpr int kThreads = 256;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const QuantiseArgs<T>& a) const {
    constexpr int kW = kWidth<T>;
    std::uint32_t greatest = 0;
    for (std::int64_t row = lane.block_x(); row < a.rows; row += lane.blocks_x())
      for_vectors<kW>(lane, a.columns, [&](std::int64_t i, std::int64_t left) {
        float v[kW];
        load(v, a.x + row * a.stride + i, left, a.whole_words);
        TERRACE_UNROLL
        for (int k = 0; k < kW; ++k) {
          const auto magnitude = std::bit_cast<std::uint32_t>(v[k]) & 0x7fffffffU;
          greatest = magnitude > greatest ? magnitude : greatest;
        }
      });
    greatest = block_max(lane, greatest, shared_as<std::uint32_t>(lane));
    if (lane.thread() == 0) a.greatest[lane.block_x()] = greatest;
  }
};

// A block has a tile of 64 × 64 elements; a thread reads 16 in a row and writes 16 codes in a row, of codes, turned or both.
template <class T>
struct QuantiseTile {
  static constexpr int kThreads = 256, kTile = 64, kEach = kTile * kTile / kThreads;
  static constexpr int kRow = kTile + 4;  // bytes of a row in shared memory, so that columns lie in several banks
  static constexpr std::size_t kRoomBytes = kWarp * sizeof(std::uint32_t), kSharedBytes = kRoomBytes + kTile * kRow;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const QuantiseArgs<T>& a) const {
    std::uint32_t greatest = 0;
    for (int p = lane.thread(); p < a.parts; p += kThreads) greatest = a.greatest[p] > greatest ? a.greatest[p] : greatest;
    const auto s = math::float8_scale(block_max(lane, greatest, shared_as<std::uint32_t>(lane)), a.format);
    if (lane.block_x() == 0 && lane.block_y() == 0 && lane.thread() == 0) *a.scale = s.scale;

    const int place = lane.thread() / (kTile / kEach), run = lane.thread() % (kTile / kEach) * kEach;
    const std::int64_t first_row = std::int64_t{lane.block_x()} * kTile, first_column = std::int64_t{lane.block_y()} * kTile;
    const std::int64_t row = first_row + place, column = first_column + run;
    float v[kEach] = {};
    if (row < a.rows && column < a.columns) load(v, a.x + row * a.stride + column, a.columns - column, a.whole_words);
    std::uint8_t codes[kEach];
    TERRACE_UNROLL
    for (int k = 0; k < kEach; ++k) codes[k] = math::float8_code(v[k], s, a.format);
    if (a.codes && row < a.rows) write(a, a.codes, a.codes_stride, row, column, codes);
    if (!a.turned) return;
    auto* const tile = shared_as<std::uint8_t>(lane, kRoomBytes);
    TERRACE_UNROLL
    for (int k = 0; k < kEach; ++k) tile[place * kRow + run + k] = codes[k];
    lane.sync();
    TERRACE_UNROLL
    for (int k = 0; k < kEach; ++k) codes[k] = tile[(run + k) * kRow + place];
    if (first_column + place < a.columns) write(a, a.turned, a.turned_stride, first_column + place, first_row + run, codes);
  }

 private:
  TERRACE_KERNEL static void write(const QuantiseArgs<T>& a, std::uint8_t* rows, std::int64_t stride, std::int64_t row,
                                   std::int64_t column, const std::uint8_t (&codes)[kEach]) {
    if (column >= stride) return;  // a multiple of kEach
    auto* const to = rows + row * stride + column;
    if (a.whole_codes) {
      Word word;
      TERRACE_UNROLL
      for (int i = 0; i < 4; ++i)
        word.part[i] = std::uint32_t{codes[4 * i]} | std::uint32_t{codes[4 * i + 1]} << 8 |
                       std::uint32_t{codes[4 * i + 2]} << 16 | std::uint32_t{codes[4 * i + 3]} << 24;
      return store_word(to, word);
    }
    TERRACE_UNROLL
    for (int k = 0; k < kEach; ++k) to[k] = codes[k];
  }
};

}  // namespace terrace::cuda
