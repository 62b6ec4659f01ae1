// The kernel table for AVX2. Compiled with its own options; see core/CMakeLists.txt.
#include <terrace/core/math/cpu/kernels.h>
#include <terrace/core/math/fp16_bits.h>

#include <terrace/core/math/cpu/kernels.inl>

namespace terrace::cpu {

constinit const Kernels kKernelsAvx2 = make_kernels("avx2");

}  // namespace terrace::cpu
