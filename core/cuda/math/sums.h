// fp64 sums (ops.h).
#pragma once

#include <terrace/core/cuda/kernels/sums.h>
#include <terrace/core/cuda/math/geometry.h>
#include <terrace/core/cuda/math/launcher.h>
#include <terrace/core/cuda/math/ops.h>

namespace terrace::cuda::ops {

// Partial sums of as much as the workspace holds at a time; the fold goes on where it stopped.
template <bool square, class Launcher>
void sum_parts(const Launcher& launcher, TensorView out, TensorView x, bool accumulate) {
  constexpr std::int64_t kMostParts = kWorkspaceBytes / sizeof(double);
  with_type(x.dtype, [&]<class T>() {
    const std::int64_t n = x.elements();
    auto* const partial = launcher.workspace.template as<double>();
    std::int64_t first = 0;
    do {
      const std::int64_t elements = std::min(n - first, kMostParts * kSumPart), parts = ceil_div(elements, kSumPart);
      launcher.template run<SumParts<T, square>>(
          {.blocks = {ceil_div(parts, kSumWarps), 1, 1}, .threads = SumParts<T, square>::kThreads},
          SumPartsArgs<T>{partial, data<T>(x) + first, elements});
      launcher.template run<FoldSums>({.threads = FoldSums::kThreads, .shared_bytes = FoldSums::kSharedBytes},
                                      FoldSumsArgs{data<double>(out), partial, parts, accumulate});
      first += elements;
      accumulate = true;
    } while (first < n);
  });
}

template <class Launcher>
void sum(const Launcher& launcher, TensorView out, TensorView x, Accumulate accumulate) {
  sum_parts<false>(launcher, out, x, accumulate == Accumulate::yes);
}
template <class Launcher>
void sum_of_squares(const Launcher& launcher, TensorView out, TensorView x) {
  sum_parts<true>(launcher, out, x, false);
}

}  // namespace terrace::cuda::ops
