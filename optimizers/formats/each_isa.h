// One loop, compiled for each instruction set.
//
// A loop is written once as an always-inline body. One function per instruction set, with that set's attribute, calls it. So
// the linker can never use one set's code for another set, and only these functions need a processor check.
//
// Internal to optimizers/.
#pragma once

#include <cstddef>

#include <terrace/core/base/wide_vectors.h>
#include <terrace/optimizers/formats/isa.h>

// Code that a GPU's kernels share with the loops is compiled for both sides.
#if defined(__CUDACC__)
#define TERRACE_INLINE __host__ __device__ __forceinline__
#define TERRACE_UNROLL_ALL  // nvcc unrolls by itself, and its host compiler does not know the pragma
#else
#define TERRACE_INLINE inline __attribute__((always_inline))
#define TERRACE_UNROLL_ALL _Pragma("GCC unroll 64")
#endif
#if defined(__x86_64__)
#define TERRACE_AVX2 __attribute__((target("avx2,fma")))
#define TERRACE_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl" TERRACE_WIDE_VECTORS)))
#define TERRACE_AVX512VBMI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi" TERRACE_WIDE_VECTORS)))
#define TERRACE_AVX512BF16 TERRACE_AVX512VBMI  // the loops write its one instruction as asm
#else
#define TERRACE_AVX512BF16
#define TERRACE_AVX2
#define TERRACE_AVX512
#define TERRACE_AVX512VBMI
#endif

namespace terrace::rules {

// False: only the baseline is compiled, because no other set would ever be chosen.
#if defined(__x86_64__)
inline constexpr bool kHasOtherIsas = true;
#else
inline constexpr bool kHasOtherIsas = false;
#endif

// One function per set; null if the set's instructions would change nothing.
template <class Function>
struct EachIsa {
  Function* baseline;
  Function* avx2;
  Function* avx512;
  Function* avx512vbmi = nullptr;
  Function* avx512bf16 = nullptr;
  [[nodiscard]] Function* of(Isa isa) const {
    Function* const all[] = {baseline, avx2, avx512, avx512vbmi, avx512bf16};
    auto at = static_cast<std::size_t>(isa);
    while (all[at] == nullptr) --at;
    return all[at];
  }
};

// A loop given as a struct with a static, always inlined `loop`, called on an instruction set.
template <class Body, class... Arguments>
void loop_of_baseline(Arguments... arguments) {
  Body::loop(arguments...);
}
template <class Body, class... Arguments>
TERRACE_AVX2 void loop_of_avx2(Arguments... arguments) {
  Body::loop(arguments...);
}
template <class Body, class... Arguments>
TERRACE_AVX512 void loop_of_avx512(Arguments... arguments) {
  Body::loop(arguments...);
}
template <class Body, class... Arguments>
void run_loop(Isa isa, Arguments... arguments) {
  if constexpr (kHasOtherIsas) {
    constexpr EachIsa<void(Arguments...)> kLoops{loop_of_baseline<Body, Arguments...>, loop_of_avx2<Body, Arguments...>,
                                                 loop_of_avx512<Body, Arguments...>};
    kLoops.of(isa)(arguments...);
  } else {
    loop_of_baseline<Body, Arguments...>(arguments...);
  }
}

}  // namespace terrace::rules
