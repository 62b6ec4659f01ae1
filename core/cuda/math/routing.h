// Experts.
#pragma once

#include <terrace/core/cuda/kernels/routing.h>
#include <terrace/core/cuda/math/geometry.h>
#include <terrace/core/cuda/math/launcher.h>

namespace terrace::cuda::ops {

template <class Launcher>
struct Experts {
  static void route(const Launcher&, const Routing&, TensorView gates, TensorView experts, TensorView rows, TensorView lse,
                    TensorView report, TensorView logits, TensorView targets);
  static void route_grad(const Launcher&, const Routing&, TensorView dlogits, TensorView dgates, TensorView logits,
                         TensorView experts, TensorView lse, TensorView report, double balance, double squares);
  static void merge_reports(const Launcher&, const Routing&, TensorView report, TensorView parts);
  static void dispatch(const Launcher&, TensorView to, TensorView from, TensorView rows, TensorView gates);
  static void combine(const Launcher&, TensorView to, TensorView from, TensorView rows, TensorView gates, Accumulate);
  static void gate_grad(const Launcher&, TensorView dgates, TensorView dy, TensorView from, TensorView rows);
};

template <class Launcher>
void Experts<Launcher>::route(const Launcher& launcher, const Routing& routing, TensorView gates, TensorView experts,
                              TensorView rows, TensorView lse, TensorView report, TensorView logits, TensorView targets) {
  with_type(logits.dtype, [&]<class T>() {
    using Choose = ChooseExperts<T>;
    using Place = PlaceRows<T>;
    const std::int64_t tokens = rows_of(logits);
    launcher.template run<Choose>(
        {.blocks = {ceil_div(tokens, std::int64_t{Choose::kThreads}), 1, 1}, .threads = Choose::kThreads},
        ChooseArgs<T>{routing, data<Acc<T>>(gates), data<Acc<T>>(lse), data<std::int32_t>(experts), data<T>(logits),
                      data<std::int32_t>(targets), tokens});
    launcher.template run<Place>({.threads = Place::kThreads, .shared_bytes = kRoomBytes<double>},
                                 PlaceRowsArgs<T>{routing, data<std::int32_t>(rows), data<double>(report),
                                                  data<std::int32_t>(experts), data<Acc<T>>(lse), data<T>(logits), tokens});
  });
}

template <class Launcher>
void Experts<Launcher>::route_grad(const Launcher& launcher, const Routing& routing, TensorView dlogits, TensorView dgates,
                                   TensorView logits, TensorView experts, TensorView lse, TensorView report, double balance,
                                   double squares) {
  with_type(logits.dtype, [&]<class T>() {
    using Kernel = RouteGrad<T>;
    const std::int64_t tokens = rows_of(logits);
    launcher.template run<Kernel>(
        {.blocks = {ceil_div(tokens, std::int64_t{Kernel::kThreads}), 1, 1}, .threads = Kernel::kThreads},
        RouteGradArgs<T>{routing, data<T>(dlogits), data<Acc<T>>(dgates), data<Acc<T>>(lse), data<T>(logits),
                         data<std::int32_t>(experts), data<double>(report), tokens, balance, squares});
  });
}

template <class Launcher>
void Experts<Launcher>::merge_reports(const Launcher& launcher, const Routing& routing, TensorView report, TensorView parts) {
  launcher.template run<MergeReports>({.threads = MergeReports::kThreads},
                                      MergeReportsArgs{routing, data<double>(report), data<double>(parts), rows_of(parts)});
}

// Kernel: DispatchRows or CombineRows. `tokens`: the matrix of tokens.
template <template <class> class Kernel, class Launcher>
void move_rows(const Launcher& launcher, TensorView to, TensorView from, TensorView tokens, TensorView rows, TensorView gates,
               bool accumulate) {
  const std::int64_t n = rows_of(tokens), columns = columns_of(tokens);
  if (n == 0 || columns == 0) return;
  with_type(tokens.dtype, [&]<class T>() {
    launcher.template run<Kernel<T>>(slice_shape<Kernel<T>>(n, columns),
                                     SlotsArgs<T>{data<T>(to), data<T>(from), data<std::int32_t>(rows), data<Acc<T>>(gates),
                                                  rows.shape[1], columns, accumulate, whole_words(columns, {to, from})});
  });
}

template <class Launcher>
void Experts<Launcher>::dispatch(const Launcher& launcher, TensorView to, TensorView from, TensorView rows, TensorView gates) {
  move_rows<DispatchRows>(launcher, to, from, from, rows, gates, false);
}
template <class Launcher>
void Experts<Launcher>::combine(const Launcher& launcher, TensorView to, TensorView from, TensorView rows, TensorView gates,
                                Accumulate accumulate) {
  move_rows<CombineRows>(launcher, to, from, to, rows, gates, accumulate == Accumulate::yes);
}

template <class Launcher>
void Experts<Launcher>::gate_grad(const Launcher& launcher, TensorView dgates, TensorView dy, TensorView from,
                                  TensorView rows) {
  with_type(dy.dtype, [&]<class T>() {
    using Kernel = GateGrad<T>;
    const std::int64_t columns = columns_of(dy);
    launcher.template run<Kernel>(row_shape<Kernel, T>(rows.elements(), columns),
                                  GateGradArgs<T>{data<Acc<T>>(dgates), data<T>(dy), data<T>(from), data<std::int32_t>(rows),
                                                  rows.shape[1], columns, whole_words(columns, {dy, from})});
  });
}

}  // namespace terrace::cuda::ops
