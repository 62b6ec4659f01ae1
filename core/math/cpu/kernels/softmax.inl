// Softmax and cross-entropy of rows, whole and in parts.
// Internal to core/math/cpu/kernels.inl.

namespace terrace::cpu {
namespace {

// Causal rows end at any column, and copying their tails through memory would cost more than the exponentials. So rows are
// padded to whole vectors, and the last vector is loaded whole and masked.
template <class A, class F>
TERRACE_INLINE void padded_sweep(A* s, i64 valid, i64 width, F&& f) {
  constexpr i64 lanes = Vector<A>::lanes;
  i64 i = 0;
  for (; i + lanes <= valid; i += lanes) f(i, Part{lanes});
  if (i < valid) {
    f(i, Part{valid - i});
    i += lanes;
  }
  for (; i < width; i += lanes) store(s + i, Vec<A>{}, Full{});
}

template <class A>
A softmax_row(A* s, i64 valid, i64 width, A scale) {
  constexpr i64 lanes = Vector<A>::lanes;
  const A lowest = -__builtin_inf();
  Vec<A> best = Vec<A>{} + lowest;
  for (i64 i = 0; i < valid; i += lanes) {
    const Vec<A> v = load(s + i, Full{});
    const Vec<A> w = within<A>(Part{valid - i}) ? v : Vec<A>{} + lowest;
    best = w > best ? w : best;
  }
  const A m = fold_max<A>(best) * scale;
  Vec<A> sums{};
  padded_sweep(
      s, valid, width, [&](i64 i, Part part) __attribute__((always_inline)) {
        const Vec<A> e = keep(exponential(load(s + i, Full{}) * scale - m), part);
        store(s + i, e, Full{});
        sums += e;
      });
  const A total = fold<A>(sums);
  const A inverse = A(1) / total;
  for (i64 i = 0; i < valid; i += lanes) store(s + i, load(s + i, Full{}) * inverse, Full{});
  return m + static_cast<A>(__builtin_log(static_cast<double>(total)));
}

template <class A>
void softmax_grad_row(A* s, A* dp, i64 valid, i64 width, A scale, A lse, A d) {
  padded_sweep(
      s, valid, width, [&](i64 i, Part part) __attribute__((always_inline)) {
        const Vec<A> p = keep(exponential(load(s + i, Full{}) * scale - lse), part);
        store(s + i, p, Full{});
        store(dp + i, keep(p * (load(dp + i, Full{}) - d) * scale, part), Full{});
      });
  for (i64 i = (valid + Vector<A>::lanes - 1) / Vector<A>::lanes * Vector<A>::lanes; i < width; i += Vector<A>::lanes) {
    store(dp + i, Vec<A>{}, Full{});
  }
}

template <class T, class A = Acc<T>>
double cross_entropy_row(T* dlogits, const T* logits, i64 vocabulary, std::int32_t target, double scale) {
  if (target < 0) {
    if (dlogits) {
      for (i64 i = 0; i < vocabulary; ++i) dlogits[i] = T{};
    }
    return 0;
  }
  const A m = max_of(logits, vocabulary);
  const A total = sum_over<A>(
      vocabulary, [&](i64 i, auto w) __attribute__((always_inline)) { return exponential(load(logits + i, w) - m); });
  const Vec<A> at_target = load(logits + target, Part{1});
  const A hit = at_target[0];
  if (dlogits) {
    const A factor = static_cast<A>(scale) / total;
    // The target's entry is written separately, with a single rounding: (p − 1)·scale.
    const A p = scalar_exponential<A>(hit - m) / total;
    sweep<Vector<A>::lanes>(
        vocabulary, [&](i64 i, auto w) __attribute__((always_inline)) {
          store(dlogits + i, exponential(load(logits + i, w) - m) * factor, w);
        });
    store(dlogits + target, Vec<A>{} + (p - A(1)) * static_cast<A>(scale), Part{1});
  }
  return __builtin_log(static_cast<double>(total)) + (static_cast<double>(m) - static_cast<double>(hit));
}

// ---- softmax of a row in parts --------------------------------------------------------------------------------------

// The value to subtract in a sum of exponentials: the largest. If all are −∞, it is 0, because −∞ − −∞ would be NaN.
template <class A>
TERRACE_INLINE Vec<A> taken_out(Vec<A> largest) {
  return largest == -__builtin_inf() ? Vec<A>{} : largest;
}

template <class T, class A = Acc<T>>
A log_sum_exp_row(const T* logits, i64 columns) {
  const A m = taken_out<A>(Vec<A>{} + max_of(logits, columns))[0];
  const A total = sum_over<A>(
      columns, [&](i64 i, auto w) __attribute__((always_inline)) { return exponential(load(logits + i, w) - m); });
  return m + static_cast<A>(__builtin_log(static_cast<double>(total)));
}

template <class A>
void merge_log_sums(A* whole, const A* parts, i64 count, i64 stride, const std::int32_t* targets, i64 n) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        Vec<A> largest = load(parts + i, w);
        for (i64 k = 1; k < count; ++k) {
          const Vec<A> v = load(parts + k * stride + i, w);
          largest = v > largest ? v : largest;
        }
        const Vec<A> m = taken_out<A>(largest);
        Vec<A> total{};
        for (i64 k = 0; k < count; ++k) total += exponential(load(parts + k * stride + i, w) - m);
        store(whole + i, m + logarithm<A>(total), w);
      });
  for (i64 i = 0; i < n; ++i) {
    if (targets[i] < 0) whole[i] = __builtin_inf();
  }
}

template <class T, class A = Acc<T>>
double cross_entropy_part_row(T* dlogits, const T* logits, i64 columns, std::int32_t target, A lse, double scale) {
  const Vec<A> at_target = target < 0 ? Vec<A>{} : load(logits + target, Part{1});
  const A hit = at_target[0];
  if (dlogits && lse == __builtin_inf()) {
    for (i64 i = 0; i < columns; ++i) dlogits[i] = T{};
  } else if (dlogits) {
    const A factor = static_cast<A>(scale);
    sweep<Vector<A>::lanes>(
        columns, [&](i64 i, auto w) __attribute__((always_inline)) {
          store(dlogits + i, exponential(load(logits + i, w) - lse) * factor, w);
        });
    // The target's entry is written separately, with a single rounding: (p − 1)·scale.
    const A p = scalar_exponential<A>(hit - lse);
    if (target >= 0) store(dlogits + target, Vec<A>{} + (p - A(1)) * factor, Part{1});
  }
  return target < 0 ? 0 : static_cast<double>(lse) - static_cast<double>(hit);
}

}  // namespace
}  // namespace terrace::cpu
