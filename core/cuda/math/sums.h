// Sums in fp64, and over rows.
#pragma once

#include <terrace/core/cuda/kernels/row_products.h>
#include <terrace/core/cuda/kernels/sums.h>
#include <terrace/core/cuda/math/geometry.h>
#include <terrace/core/cuda/math/launcher.h>

namespace terrace::cuda::ops {

template <class Launcher>
struct Sums {
  static void sum(const Launcher&, TensorView out, TensorView x, Accumulate);
  static void sum_of_squares(const Launcher&, TensorView out, TensorView x, std::int64_t first);
  static void row_products(const Launcher&, TensorView sums, TensorView a, TensorView b, TensorView gain, double factor,
                           double offset);
};

template <bool square, class T, class Launcher>
void sum_parts(const Launcher& launcher, double* parts, const T* x, std::int64_t elements, std::int64_t first) {
  launcher.template run<SumParts<T, square>>(
      {.blocks = {ceil_div(square_blocks(elements, first), kSumWarps), 1, 1}, .threads = SumParts<T, square>::kThreads},
      SumPartsArgs<T>{parts, x, elements, first});
}

// Computes as many partial sums at a time as the workspace holds; the fold then continues where it stopped.
template <class Launcher>
void Sums<Launcher>::sum(const Launcher& launcher, TensorView out, TensorView x, Accumulate accumulate) {
  constexpr std::int64_t kMostParts = kWorkspaceBytes / sizeof(double);
  with_type(x.dtype, [&]<class T>() {
    const std::int64_t n = x.elements();
    auto* const partial = launcher.workspace.template as<double>();
    bool more = accumulate == Accumulate::yes;
    std::int64_t begin = 0;
    do {
      const std::int64_t elements = std::min(n - begin, kMostParts * kSumBlock);
      sum_parts<false>(launcher, partial, data<T>(x) + begin, elements, kSumBlock);
      launcher.template run<FoldSums>({.threads = FoldSums::kThreads, .shared_bytes = FoldSums::kSharedBytes},
                                      FoldSumsArgs{data<double>(out), partial, square_blocks(elements, kSumBlock), more});
      begin += elements;
      more = true;
    } while (begin < n);
  });
}

template <class Launcher>
void Sums<Launcher>::sum_of_squares(const Launcher& launcher, TensorView out, TensorView x, std::int64_t first) {
  with_type(x.dtype, [&]<class T>() { sum_parts<true>(launcher, data<double>(out), data<T>(x), x.elements(), first); });
}

template <class Launcher>
void Sums<Launcher>::row_products(const Launcher& launcher, TensorView sums, TensorView a, TensorView b, TensorView gain,
                                  double factor, double offset) {
  with_type(a.dtype, [&]<class T>() {
    using A = Acc<T>;
    const std::int64_t c = columns_of(a);
    launcher.template run<RowProducts<T>>(row_shape<RowProducts<T>, T>(rows_of(a), c),
                                          RowProductsArgs<T>{.sums = data<A>(sums),
                                                             .a = data<T>(a),
                                                             .b = data<T>(b),
                                                             .gain = data<T>(gain),
                                                             .columns = c,
                                                             .factor = static_cast<A>(factor),
                                                             .offset = static_cast<A>(offset),
                                                             .whole = whole_words(c, {a, b, gain})});
  });
}

}  // namespace terrace::cuda::ops
