// AdamW's inner loops, one table an instruction set, picked once at run time. The arithmetic is that of docs/optimizers.md.
//
// bf16 travels as its bits, so that the loops use no inline function of another header: code of one instruction set must
// not be linked into another's path.
//
// Owner:   static tables.
// Threads: any; kernels have no state.
#pragma once

#include <cstdint>

namespace terrace::adamw {

// One step's factors, computed in double on the host and then rounded once to the arithmetic type.
template <class A>
struct Factors {
  A gradient_scale;
  A decay;  // 1 − lr·wd, or 1
  A one_minus_beta1;
  A beta2;
  A one_minus_beta2;
  A inverse_root;  // 1 / sqrt(1 − β2^t)
  A eps;
  A step_size;  // lr / (1 − β1^t)
};

// W: weight and moments; G: gradient. Spans do not overlap.
template <class W, class G>
struct Elements {
  W* weight;
  std::uint16_t* compute;  // null, or the bf16 copy of the new weight
  const G* gradient;
  W* first_moment;
  W* second_moment;
  std::int64_t count;
  bool first;  // moments are not read but taken as zero
};

struct Kernels {
  const char* name;
  void (*fp32)(const Elements<float, float>&, const Factors<float>&);
  void (*fp32_bf16_gradient)(const Elements<float, std::uint16_t>&, const Factors<float>&);
  void (*fp64)(const Elements<double, double>&, const Factors<double>&);
};

extern const Kernels kKernelsBaseline;
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;

// Null when this processor cannot run it: 0 baseline, 1 AVX2, 2 AVX-512.
inline constexpr int kKernelTables = 3;
const Kernels* kernels_if_supported(int table);
const Kernels& select_kernels();  // the best this processor runs

}  // namespace terrace::adamw
