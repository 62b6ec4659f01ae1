// The vector loops of the CPU math: one table per instruction set, chosen once at run time.
//
// The same source is compiled for each instruction set on 64-byte vectors with a fixed lane order and no contraction, so
// every table gives the same bits for fp32, bf16 and fp16 (fp64's exponentials and logarithms are the C library's).
// T is the storage type (bf16 is stored as its bits, fp16 as Fp16), A the arithmetic type (fp32, or fp64 for fp64).
//
// Owner:   static tables.
// Threads: any; kernels have no state.
#pragma once

#include <cstdint>

namespace terrace::cpu {

// The bits of an fp16. It needs its own type, because the bits of a bf16 are also std::uint16_t; it has no functions.
enum class Fp16 : std::uint16_t {};

template <class T, class A>
struct KernelsOf {
  // One row of c elements, with gains offset + gain. `mean` null: RMSNorm. `bias` may be null. `square`, `product`: the means
  // over the whole row, of which this call gets only some columns; null: the row is whole.
  void (*norm_row)(T* y, A* mean, A* rstd, const T* x, const T* gain, const T* bias, std::int64_t c, double eps, A offset,
                   const A* square);
  void (*norm_input_grad_row)(T* dx, const T* dy, const T* x, const T* gain, const A* mean, A rstd, std::int64_t c,
                              bool accumulate, A offset, const A* product);
  A (*row_product)(const T* a, const T* b, const T* gain, std::int64_t c, A offset);  // `gain` may be null
  // Sums of at most kColumns columns over `rows` rows, by blocks of kRowBlock rows that are folded in order. `dbias` and `mean`
  // may be null. `rstd` may be null if `mean` is: then x is used without normalisation.
  void (*norm_weight_grad)(A* dgain, A* dbias, const T* dy, const T* x, const A* mean, const A* rstd, std::int64_t rows,
                           std::int64_t columns, std::int64_t row_elements);
  void (*column_sums)(A* sums, const T* x, std::int64_t rows, std::int64_t columns, std::int64_t row_elements);
  // One head: pairs (i, i + half); `sin` is negated to rotate back.
  void (*rotate)(T* x, const A* cosine, const A* sine, std::int64_t half, bool inverse);
  void (*gelu)(T* y, const T* x, std::int64_t n);
  void (*gelu_grad)(T* dx, const T* dy, const T* x, std::int64_t n);
  void (*swiglu)(T* y, const T* gate, const T* up, std::int64_t n);
  void (*swiglu_grad)(T* dgate, T* dup, const T* dy, const T* gate, const T* up, std::int64_t n);
  void (*geglu)(T* y, const T* gate, const T* up, std::int64_t n);
  void (*geglu_grad)(T* dgate, T* dup, const T* dy, const T* gate, const T* up, std::int64_t n);
  void (*gelu_erf)(T* y, const T* x, std::int64_t n);
  void (*gelu_erf_grad)(T* dx, const T* dy, const T* x, std::int64_t n);
  void (*geglu_erf)(T* y, const T* gate, const T* up, std::int64_t n);
  void (*geglu_erf_grad)(T* dgate, T* dup, const T* dy, const T* gate, const T* up, std::int64_t n);
  void (*multiply)(T* y, const T* x, std::int64_t n, A factor);
  // y = cap · tanh(factor · x / cap); dx = dy · factor · (1 − (y / cap)²).
  void (*soft_cap)(T* y, const T* x, std::int64_t n, A factor, A cap);
  void (*soft_cap_grad)(T* dx, const T* dy, const T* y, std::int64_t n, A factor, A cap);
  void (*add)(T* y, const T* x, const T* r, std::int64_t n);
  void (*scale)(T* y, const T* x, const T* gain, std::int64_t n, bool accumulate);
  A (*dot)(const T* x, const T* y, std::int64_t n);
  void (*axpy)(A* y, A a, const T* x, std::int64_t n);  // y += a·x
  // Loss of one row, and (softmax − onehot)·scale into dlogits (may be null, may be logits). target < 0: loss 0, gradient 0.
  double (*cross_entropy_row)(T* dlogits, const T* logits, std::int64_t vocabulary, std::int32_t target, double scale);
  A (*log_sum_exp_row)(const T* logits, std::int64_t columns);
  // The same as cross_entropy_row for a part of the columns, with the whole row's log-sum-exp; +∞: gradient 0.
  double (*cross_entropy_part_row)(T* dlogits, const T* logits, std::int64_t columns, std::int32_t target, A lse, double scale);
  double (*sum)(const T* x, std::int64_t n);
  double (*sum_of_squares)(const T* x, std::int64_t n);
};

template <class A>
struct SoftmaxOf {
  // Rows are `width` elements long, a multiple of kSoftmaxPadding; what lies in [valid, width) is ignored and zeroed.
  // s becomes softmax(scale·s); returns the log-sum-exp of scale·s.
  A (*softmax_row)(A* s, std::int64_t valid, std::int64_t width, A scale);
  // s becomes p = exp(scale·s − lse) and dp becomes p·(dp − d)·scale.
  void (*softmax_grad_row)(A* s, A* dp, std::int64_t valid, std::int64_t width, A scale, A lse, A d);
  // whole[n] = the log-sum-exp of parts[count][n], whose rows are `stride` elements apart; +∞ where the target is negative.
  void (*merge_log_sums)(A* whole, const A* parts, std::int64_t count, std::int64_t stride, const std::int32_t* targets,
                         std::int64_t n);
};

inline constexpr std::int64_t kSoftmaxPadding = 16;
inline constexpr std::int64_t kColumns = 64;    // columns a task of the column sums takes
inline constexpr std::int64_t kRowBlock = 256;  // rows summed before they are folded

using ConvertKernel = void (*)(void* y, const void* x, std::int64_t n);

struct Kernels {
  const char* name;
  KernelsOf<float, float> fp32;
  KernelsOf<std::uint16_t, float> bf16;
  KernelsOf<double, double> fp64;
  KernelsOf<Fp16, float> fp16;
  SoftmaxOf<float> softmax_fp32;
  SoftmaxOf<double> softmax_fp64;
  ConvertKernel convert[4][4][2];  // [to][from][accumulate], by DType
  // c[n] (n at most kPanel, row stride ldc) = a[m, k] · panel[k, kPanel]; a's strides are given.
  void (*product_fp64)(double* c, std::int64_t ldc, const double* a, std::int64_t a_row, std::int64_t a_column,
                       const double* panel, std::int64_t m, std::int64_t n, std::int64_t k);
};
inline constexpr std::int64_t kPanel = 32;

extern const Kernels kKernelsBaseline;
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;

const Kernels& select_kernels();  // the best this processor runs

}  // namespace terrace::cpu
