// The kernel table for any x86-64 (and other processors). Compiled with its own options; see core/CMakeLists.txt.
#include <terrace/core/math/cpu/kernels.h>
#include <terrace/core/math/fp16_bits.h>

#include <terrace/core/math/cpu/kernels.inl>

namespace terrace::cpu {

constinit const Kernels kKernelsBaseline = make_kernels("baseline");

}  // namespace terrace::cpu
