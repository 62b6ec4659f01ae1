// The loops of fold(), one table an instruction set, picked once at run time. bf16 travels as its bits, so that the loops use
// no inline function of another header.
//
// Owner:   static tables.
// Threads: any; kernels have no state.
#pragma once

#include <cstdint>

namespace terrace::folding {

using Kernel = void (*)(void* to, const void* const* from, int sources, std::int64_t count);

enum Types : int { fp32, fp64, bf16, bf16_to_fp32, fp32_to_bf16, block8_to_fp32, kTypes };

struct Kernels {
  const char* name;
  Kernel kernel[kTypes][2][2];   // [types][max][onto]; blocks have no maximum
  Kernel past_cache[kTypes][2];  // [types][max]: `to` is aligned to 64 bytes and written past the cache, blocks' is not
};

extern const Kernels kKernelsBaseline;
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;

// Null when this processor cannot run it: 0 baseline, 1 AVX2, 2 AVX-512.
inline constexpr int kKernelTables = 3;
const Kernels* kernels_if_supported(int table);
const Kernels& select_kernels();  // the best this processor runs

}  // namespace terrace::folding
