// Gradients that are sums over rows.
#pragma once

#include <string>

#include <terrace/core/cuda/kernels/column_sums.h>
#include <terrace/core/cuda/math/geometry.h>
#include <terrace/core/cuda/math/launcher.h>

namespace terrace::cuda::ops {

template <class Launcher>
struct ColumnSums {
  static void bias_grad(const Launcher&, TensorView db, TensorView dy, Accumulate);
  static void norm_weight_grad(const Launcher&, TensorView dgain, TensorView dbias, TensorView dy, TensorView x,
                               TensorView mean, TensorView rstd, Accumulate);
};

// The parts into which rows are divided: enough to fill a GPU, few enough for the workspace, and whole rounds of a block's
// warps.
template <class A>
RowParts<A> row_parts(const Workspace& workspace, std::int64_t rows, std::int64_t columns, int outputs, bool whole) {
  constexpr std::int64_t kMostParts = 64, kFewestRows = 64;
  const auto room = static_cast<std::int64_t>(kWorkspaceBytes / sizeof(A)) / (columns * outputs);
  if (room == 0) {
    throw std::logic_error("sums over rows: " + std::to_string(columns) + " columns are more than the workspace holds");
  }
  const std::int64_t share = std::max(ceil_div(rows, std::min(kMostParts, room)), kFewestRows);
  return {.sums = workspace.as<A>(),
          .rows = rows,
          .columns = columns,
          .rows_a_part = ceil_div(share, kColumnWarps) * kColumnWarps,
          .whole = whole};
}

template <class Kernel, class T, class Launcher, class Args>
void sum_columns(const Launcher& launcher, const Args& args, TensorView out, TensorView more, Accumulate accumulate) {
  const auto& p = args.parts;
  const std::int64_t parts = ceil_div(p.rows, p.rows_a_part);
  launcher.template run<Kernel>(
      {.blocks = {ceil_div(p.columns, kColumnGroup<T>), parts, 1},
       .threads = Kernel::kThreads,
       .shared_bytes = sizeof(Acc<T>) * Kernel::kOutputs * kColumnWarps * static_cast<std::size_t>(kColumnGroup<T>)},
      args);
  std::int64_t output = 0;
  for (const TensorView& to : {out, more}) {
    const Acc<T>* const sums = p.sums + output++ * parts * p.columns;
    if (to.empty()) continue;
    with_gradient_type<T>(to.dtype, [&]<class Out>() {
      using Fold = FoldParts<Out>;
      launcher.template run<Fold>({.blocks = {ceil_div(p.columns, Fold::kThreads), 1, 1}, .threads = Fold::kThreads},
                                  FoldPartsArgs<Out>{data<Out>(to), sums, p.columns, parts, accumulate == Accumulate::yes});
    });
  }
}

template <class Launcher>
void ColumnSums<Launcher>::bias_grad(const Launcher& launcher, TensorView db, TensorView dy, Accumulate accumulate) {
  with_type(dy.dtype, [&]<class T>() {
    using Kernel = BiasGradParts<T>;
    const std::int64_t c = columns_of(dy);
    const BiasGradArgs<T> args{row_parts<Acc<T>>(launcher.workspace, rows_of(dy), c, Kernel::kOutputs, whole_words(c, {dy})),
                               data<T>(dy)};
    sum_columns<Kernel, T>(launcher, args, db, {}, accumulate);
  });
}

template <class Launcher>
void ColumnSums<Launcher>::norm_weight_grad(const Launcher& launcher, TensorView dgain, TensorView dbias, TensorView dy,
                                            TensorView x, TensorView mean, TensorView rstd, Accumulate accumulate) {
  with_type(dy.dtype, [&]<class T>() {
    using Kernel = NormWeightGradParts<T>;
    const std::int64_t c = columns_of(dy);
    const NormWeightGradArgs<T> args{
        .parts = row_parts<Acc<T>>(launcher.workspace, rows_of(dy), c, Kernel::kOutputs, whole_words(c, {dy, x})),
        .dy = data<T>(dy),
        .x = data<T>(x),
        .mean = data<Acc<T>>(mean),
        .rstd = data<Acc<T>>(rstd)};
    sum_columns<Kernel, T>(launcher, args, dgain, dbias, accumulate);
  });
}

}  // namespace terrace::cuda::ops
