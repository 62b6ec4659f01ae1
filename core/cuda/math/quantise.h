// Operands of 8 bits for products.
#pragma once

#include <algorithm>
#include <stdexcept>

#include <terrace/core/cuda/kernels/quantise.h>
#include <terrace/core/cuda/math/geometry.h>

namespace terrace::cuda::ops {

template <class Launcher>
struct Quantising {
  static void quantise(const Launcher&, TensorView codes, TensorView turned, TensorView scale, MatrixView x);
};

template <class Launcher>
void Quantising<Launcher>::quantise(const Launcher& launcher, TensorView codes, TensorView turned, TensorView scale,
                                    MatrixView x) {
  constexpr std::int64_t kMostParts = 1024;  // more would keep no GPU busier
  const std::int64_t rows = rows_of(x), columns = columns_of(x);
  const auto parts = std::clamp<std::int64_t>(rows, 1, kMostParts);
  const auto run = [&]<class T>() {
    const QuantiseArgs<T> args{.x = data<T>(x.view),
                               .rows = rows,
                               .columns = columns,
                               .stride = x.stride,
                               .greatest = launcher.workspace.template as<std::uint32_t>(),
                               .parts = static_cast<std::int32_t>(parts),
                               .whole_words = whole_words(x.stride, {x.view}),
                               .whole_codes = whole_words(kWordBytes, {codes, turned}),  // strides are multiples of 128
                               .format = math::float8_format(codes.empty() ? turned.dtype : codes.dtype),
                               .codes = data<std::uint8_t>(codes),
                               .turned = data<std::uint8_t>(turned),
                               .codes_stride = math::float8_columns(columns),
                               .turned_stride = math::float8_columns(rows),
                               .scale = data<float>(scale)};
    using Tile = QuantiseTile<T>;
    launcher.template run<GreatestMagnitude<T>>({.blocks = {parts, 1, 1},
                                                 .threads = threads_of_row(columns, kWidth<T>, GreatestMagnitude<T>::kThreads),
                                                 .shared_bytes = kRoomBytes<std::uint32_t>},
                                                args);
    // Tiles cover the zeros behind the codes, too.
    const auto tiles = [](std::int64_t elements) {
      return std::max<std::int64_t>(1, ceil_div(elements, std::int64_t{Tile::kTile}));
    };
    launcher.template run<Tile>(
        {.blocks = {tiles(turned.empty() ? rows : args.turned_stride), tiles(codes.empty() ? columns : args.codes_stride), 1},
         .threads = Tile::kThreads,
         .shared_bytes = Tile::kSharedBytes},
        args);
  };
  if (x.view.dtype == DType::bf16) return run.template operator()<bf16>();
  if (x.view.dtype == DType::fp16) return run.template operator()<fp16>();
  if (x.view.dtype == DType::fp32) return run.template operator()<float>();
  throw std::logic_error("quantise: fp32, bf16 or fp16");
}

}  // namespace terrace::cuda::ops
