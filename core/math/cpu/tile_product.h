// One product of one tile, on the calling thread only. fp32: one call of oneDNN. fp16: widened to fp32, a few calls. bf16: one
// call where oneDNN multiplies bf16 on this processor (AVX-512), otherwise widened like fp16. fp64: plain loops.
//
// Threads: any; the library's own pool is held at one thread. Errors: std::runtime_error with the library's status.
#pragma once

#include <cstdint>

#include <terrace/core/math/cpu/compute.h>

namespace terrace::cpu {

// op(x) is [rows, columns], and is stored as [columns, rows] if transposed. `stride`: from one stored row to the next.
template <class T>
struct Operand {
  const T* data;
  std::int64_t stride;
  bool transposed;
};

// c[m,n] = op(a)[m,k] · op(b)[k,n], plus the old c if `add`. 16-bit products may use the thread's scratch of operand_a and
// operand_b.
void tile_product(const Kernels&, float* c, std::int64_t ldc, Operand<float> a, Operand<float> b, std::int64_t m,
                  std::int64_t n, std::int64_t k, bool add = false);
void tile_product(const Kernels&, float* c, std::int64_t ldc, Operand<std::uint16_t> a, Operand<std::uint16_t> b,
                  std::int64_t m, std::int64_t n, std::int64_t k);
bool library_multiplies_bf16();  // if false, they are widened
void tile_product(const Kernels&, float* c, std::int64_t ldc, Operand<Fp16> a, Operand<Fp16> b, std::int64_t m, std::int64_t n,
                  std::int64_t k);
void tile_product(const Kernels&, double* c, std::int64_t ldc, Operand<double> a, Operand<double> b, std::int64_t m,
                  std::int64_t n, std::int64_t k, bool add = false);

}  // namespace terrace::cpu
