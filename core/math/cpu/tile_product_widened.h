// Products of 16-bit numbers, computed in fp32: one part of the inner sum at a time is widened (which is exact) and multiplied;
// the parts are added in ascending order.
//
// Threads: any; uses the calling thread's scratch of operand_a and operand_b.
#pragma once

#include <terrace/core/math/cpu/tile_product.h>

namespace terrace::cpu {

// c[m,n] = op(a)[m,k] · op(b)[k,n], for T = Fp16 or std::uint16_t (the bits of a bf16).
template <class T>
void widened_product(const Kernels& kernels, float* c, std::int64_t ldc, Operand<T> a, Operand<T> b, std::int64_t m,
                     std::int64_t n, std::int64_t k);

}  // namespace terrace::cpu
