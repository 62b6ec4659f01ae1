// Norms of rows and their gradients; sums of columns.
// Internal to core/math/cpu/kernels.inl.

namespace terrace::cpu {
namespace {

template <class T, class A = Acc<T>>
void norm_row(T* y, A* mean, A* rstd, const T* x, const T* gain, const T* bias, i64 c, double eps, A offset, const A* square) {
  const A count = static_cast<A>(c);
  A m = 0;
  if (mean) {
    m = sum_over<A>(
            c, [&](i64 i, auto w) __attribute__((always_inline)) { return load(x + i, w); }) /
        count;
    *mean = m;
  }
  const A variance = square ? *square
                            : sum_over<A>(
                                  c,
                                  [&](i64 i, auto w) __attribute__((always_inline)) {
                                    const Vec<A> d = load(x + i, w) - m;
                                    return d * d;
                                  }) /
                                  count;
  const A scaled = variance + static_cast<A>(eps);
  A root;
  if constexpr (sizeof(A) == 8)
    root = __builtin_sqrt(scaled);
  else
    root = __builtin_sqrtf(scaled);
  const A r = A(1) / root;
  *rstd = r;
  if (bias) {
    sweep<Vector<A>::lanes>(
        c, [&](i64 i, auto w) __attribute__((always_inline)) {
          store(y + i, (load(x + i, w) - m) * r * (load(gain + i, w) + offset) + load(bias + i, w), w);
        });
  } else {
    sweep<Vector<A>::lanes>(
        c, [&](i64 i, auto w)
               __attribute__((always_inline)) { store(y + i, (load(x + i, w) - m) * r * (load(gain + i, w) + offset), w); });
  }
}

template <class T, class A = Acc<T>>
void norm_input_grad_row(T* dx, const T* dy, const T* x, const T* gain, const A* mean, A rstd, i64 c, bool accumulate,
                         A offset, const A* product) {
  const A count = static_cast<A>(c);
  const A m = mean ? *mean : A(0);
  const A g_mean =
      mean ? sum_over<A>(
                 c, [&](i64 i, auto w) __attribute__((always_inline)) { return load(dy + i, w) * (load(gain + i, w) + offset); }) /
                 count
           : A(0);
  const A gx_mean =
      product ? *product * rstd
              : sum_over<A>(
                    c,
                    [&](i64 i, auto w) __attribute__((always_inline)) {
                      return load(dy + i, w) * (load(gain + i, w) + offset) * ((load(x + i, w) - m) * rstd);
                    }) /
                    count;
  sweep<Vector<A>::lanes>(
      c, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> normed = (load(x + i, w) - m) * rstd;
        const Vec<A> d = (load(dy + i, w) * (load(gain + i, w) + offset) - g_mean - normed * gx_mean) * rstd;
        store(dx + i, accumulate ? load(dx + i, w) + d : d, w);
      });
}

template <class T, class A = Acc<T>>
A row_product(const T* a, const T* b, const T* gain, i64 c, A offset) {
  if (!gain)
    return sum_over<A>(
        c, [&](i64 i, auto w) __attribute__((always_inline)) { return load(a + i, w) * load(b + i, w); });
  return sum_over<A>(
      c, [&](i64 i, auto w)
             __attribute__((always_inline)) { return load(a + i, w) * (load(gain + i, w) + offset) * load(b + i, w); });
}

// f(row, column, width, totals) adds one vector to the totals. Blocks of rows are summed separately, then folded in order.
template <class A, int outputs, class F>
TERRACE_INLINE void column_blocks(A* const* out, i64 rows, i64 columns, F&& f) {
  constexpr i64 lanes = Vector<A>::lanes;
  sweep<lanes>(
      columns, [&](i64 j, auto w) __attribute__((always_inline)) {
        Vec<A> total[outputs] = {};
        for (i64 begin = 0; begin < rows; begin += kRowBlock) {
          const i64 end = begin + kRowBlock < rows ? begin + kRowBlock : rows;
          Vec<A> block[outputs] = {};
          for (i64 row = begin; row < end; ++row) f(row, j, w, block);
          for (int o = 0; o < outputs; ++o) total[o] += block[o];
        }
        for (int o = 0; o < outputs; ++o) store(out[o] + j, total[o], w);
      });
}

template <class T, class A = Acc<T>>
void norm_weight_grad(A* dgain, A* dbias, const T* dy, const T* x, const A* mean, const A* rstd, i64 rows, i64 columns,
                      i64 row_elements) {
  A unused[kColumns];
  A* const out[2] = {dgain, dbias ? dbias : unused};
  column_blocks<A, 2>(
      out, rows, columns, [&](i64 row, i64 j, auto w, Vec<A>* block) __attribute__((always_inline)) {
        const Vec<A> d = load(dy + row * row_elements + j, w);
        const A m = mean ? mean[row] : A(0);
        block[0] += d * ((load(x + row * row_elements + j, w) - m) * (rstd ? rstd[row] : A(1)));
        block[1] += d;
      });
}

template <class T, class A = Acc<T>>
void column_sums(A* sums, const T* x, i64 rows, i64 columns, i64 row_elements) {
  A* const out[1] = {sums};
  column_blocks<A, 1>(
      out, rows, columns, [&](i64 row, i64 j, auto w, Vec<A>* block) __attribute__((always_inline)) {
        block[0] += load(x + row * row_elements + j, w);
      });
}

}  // namespace
}  // namespace terrace::cpu
