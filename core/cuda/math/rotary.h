// Rotary positions.
#pragma once

#include <numbers>
#include <string>

#include <terrace/core/base/error.h>
#include <terrace/core/cuda/kernels/rotary.h>
#include <terrace/core/cuda/math/geometry.h>

namespace terrace::cuda::ops {

template <class Launcher>
struct RotaryPositions {
  static void rotary(const Launcher&, TensorView x, std::int64_t row_elements, std::int64_t seq, std::int64_t first_position,
                     const Rotary& angles, bool inverse);
};

template <class Launcher>
void RotaryPositions<Launcher>::rotary(const Launcher& launcher, TensorView x, std::int64_t row_elements, std::int64_t seq,
                                       std::int64_t first_position, const Rotary& angles, bool inverse) {
  const std::int64_t rows = x.shape[0], heads = x.shape[1], dim = x.shape[2], half = dim / 2;
  if (half > kRotaryPairs) {
    throw Error("rotary: heads of " + std::to_string(dim) + " elements; the CUDA device has at most " +
                std::to_string(2 * kRotaryPairs));
  }
  with_type(x.dtype, [&]<class T>() {
    constexpr int W = kWidth<T>;
    RotaryArgs<T> args{.x = data<T>(x),
                       .row_elements = row_elements,
                       .seq = seq,
                       .first_position = first_position,
                       .heads = static_cast<int>(heads),
                       .half = static_cast<int>(half),
                       .inverse = inverse,
                       .whole = half % W == 0 && row_elements % W == 0 && whole_words(half, {x}),
                       .length = angles.length,
                       .turns = {}};
    for (std::int64_t i = 0; i < half; ++i) args.turns[i] = angles.frequency(i, dim) / (2 * std::numbers::pi_v<double>);
    using Kernel = RotaryRows<T>;
    launcher.template run<Kernel>({.blocks = {rows, 1, 1},
                                   .threads = threads_of_row(heads * half, W, Kernel::kThreads),
                                   .shared_bytes = 2 * sizeof(Acc<T>) * static_cast<std::size_t>(half)},
                                  args);
  });
}

}  // namespace terrace::cuda::ops
