// The loops of fold(): one table per instruction set, chosen once at run time. bf16 numbers are passed as bits, so that the
// loops use no inline function of another header.
//
// Owner:   static tables.
// Threads: any; kernels have no state.
#pragma once

#include <cstdint>

namespace terrace::comm::folding {

using Kernel = void (*)(void* to, const void* const* from, int sources, std::int64_t count);

enum Types : int { fp32, fp64, bf16, bf16_to_fp32, fp32_to_bf16, block8_to_fp32, kTypes };

struct Kernels {
  const char* name;
  Kernel kernel[kTypes][2][2];   // [types][max][onto]; blocks have no maximum
  Kernel past_cache[kTypes][2];  // [types][max]: `to` is aligned to 64 bytes and written past the cache, except for blocks
};

extern const Kernels kKernelsBaseline;
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;

// Table 0 is the baseline, 1 AVX2, 2 AVX-512. Null if this processor cannot run the table.
inline constexpr int kKernelTables = 3;
const Kernels* kernels_if_supported(int table);
const Kernels& select_kernels();  // the best this processor runs

}  // namespace terrace::comm::folding
