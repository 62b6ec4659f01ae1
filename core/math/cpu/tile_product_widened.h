// Products of numbers of 16 and 8 bits, computed in fp32: one part of the inner sum at a time is widened (which is exact) and
// multiplied; the parts are added in ascending order.
//
// Threads: any; uses the calling thread's scratch of operand_a and operand_b.
#pragma once

#include <terrace/core/math/cpu/tile_product.h>

namespace terrace::cpu {

// The codes of core/math/float8.h.
struct E4m3 {
  std::uint8_t code;
};
struct E5m2 {
  std::uint8_t code;
};

// c[m,n] = op(a)[m,k] · op(b)[k,n]. A and B: both Fp16, both std::uint16_t (the bits of a bf16), or each E4m3 or E5m2.
template <class A, class B>
void widened_product(const Kernels& kernels, float* c, std::int64_t ldc, Operand<A> a, Operand<B> b, std::int64_t m,
                     std::int64_t n, std::int64_t k);

template <class A, class B>
requires(sizeof(A) == 1) void tile_product(const Kernels& kernels, float* c, std::int64_t ldc, Operand<A> a, Operand<B> b,
                                           std::int64_t m, std::int64_t n, std::int64_t k) {
  widened_product(kernels, c, ldc, a, b, m, n, k);
}

}  // namespace terrace::cpu
