// The kernel table for AVX-512 F, BW, DQ, VL. Compiled with its own options; see core/CMakeLists.txt.
#include <terrace/core/math/cpu/kernels.h>
#include <terrace/core/math/fp16_bits.h>

#include <terrace/core/math/cpu/kernels.inl>

namespace terrace::cpu {

constinit const Kernels kKernelsAvx512 = make_kernels("avx512");

}  // namespace terrace::cpu
