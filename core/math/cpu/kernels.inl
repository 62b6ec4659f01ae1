// The source of every kernel table; each kernels_<isa>.cpp includes it once. Everything here has internal linkage and uses
// no inline function of another header, so that no code of one instruction set can be linked into another's path.

// clang-format off: each file needs those before it.
#include <terrace/core/math/cpu/kernels/vectors.inl>
#include <terrace/core/math/cpu/kernels/functions.inl>
#include <terrace/core/math/cpu/kernels/norm.inl>
#include <terrace/core/math/cpu/kernels/rotary.inl>
#include <terrace/core/math/cpu/kernels/activation.inl>
#include <terrace/core/math/cpu/kernels/elementwise.inl>
#include <terrace/core/math/cpu/kernels/softmax.inl>
#include <terrace/core/math/cpu/kernels/product.inl>
// clang-format on

namespace terrace::cpu {
namespace {

template <class T>
constexpr KernelsOf<T, Acc<T>> kernels_of() {
  return {
#define TERRACE_KERNEL(result, name, ...) .name = name<T>,
#include <terrace/core/math/cpu/kernels/kernel_list.inl>
  };
}

constexpr Kernels make_kernels(const char* name) {
  return {name,
          kernels_of<float>(),
          kernels_of<u16>(),
          kernels_of<double>(),
          kernels_of<Fp16>(),
          {softmax_row<float>, softmax_grad_row<float>, merge_log_sums<float>},
          {softmax_row<double>, softmax_grad_row<double>, merge_log_sums<double>},
          {{{convert<float, float, false>, convert<float, float, true>},
            {convert<float, u16, false>, convert<float, u16, true>},
            {convert<float, double, false>, convert<float, double, true>},
            {convert<float, Fp16, false>, convert<float, Fp16, true>}},
           {{convert<u16, float, false>, convert<u16, float, true>},
            {convert<u16, u16, false>, convert<u16, u16, true>},
            {convert<u16, double, false>, convert<u16, double, true>},
            {convert<u16, Fp16, false>, convert<u16, Fp16, true>}},
           {{convert<double, float, false>, convert<double, float, true>},
            {convert<double, u16, false>, convert<double, u16, true>},
            {convert<double, double, false>, convert<double, double, true>},
            {convert<double, Fp16, false>, convert<double, Fp16, true>}},
           {{convert<Fp16, float, false>, convert<Fp16, float, true>},
            {convert<Fp16, u16, false>, convert<Fp16, u16, true>},
            {convert<Fp16, double, false>, convert<Fp16, double, true>},
            {convert<Fp16, Fp16, false>, convert<Fp16, Fp16, true>}}},
          product_fp64};
}

}  // namespace
}  // namespace terrace::cpu
