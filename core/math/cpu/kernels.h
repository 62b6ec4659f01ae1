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
#define TERRACE_KERNEL(result, name, ...) result (*name)(__VA_ARGS__);
#include <terrace/core/math/cpu/kernels/kernel_list.inl>
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
