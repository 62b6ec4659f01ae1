// The asynchronous products of a warpgroup (lane.h) in PTX, for CudaLane. They can be assembled only for sm_90a.
#pragma once

#include <cstdint>

#include <terrace/core/cuda/matrix_descriptor.h>

namespace terrace::cuda::ptx {

#define TERRACE_D4(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define TERRACE_D16(n) TERRACE_D4(n), TERRACE_D4(n + 1), TERRACE_D4(n + 2), TERRACE_D4(n + 3)
#define TERRACE_D32 TERRACE_D16(0), TERRACE_D16(4)
#define TERRACE_D48 TERRACE_D32, TERRACE_D16(8)
#define TERRACE_D64 TERRACE_D48, TERRACE_D16(12)
#define TERRACE_NAMES32                                                                                                 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, " \
  "%25, %26, %27, %28, %29, %30, %31"
#define TERRACE_NAMES48 TERRACE_NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TERRACE_NAMES64 TERRACE_NAMES48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// The last operands of the instruction: whether to add to d; 1, 1: do not negate a and b; and whether they are transposed.
#define TERRACE_PRODUCT(columns, names, operands, add, transposed)                                                          \
  "{\n.reg .pred add;\nsetp.ne.b32 add, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" names \
  "}, " operands ", add, 1, 1, " transposed ";\n}\n"

template <int n>
__device__ __forceinline__ void multiply_async(float (&d)[n][4], MatrixDescriptor a, MatrixDescriptor b, bool add) {
  static_assert(n == 8 || n == 12 || n == 16, "a product of another width is not written yet");
  if constexpr (n == 8) {
    asm volatile(TERRACE_PRODUCT("64", TERRACE_NAMES32, "%32, %33", "%34", "0, 0")
                 : TERRACE_D32
                 : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)));
  } else if constexpr (n == 12) {
    asm volatile(TERRACE_PRODUCT("96", TERRACE_NAMES48, "%48, %49", "%50", "0, 0")
                 : TERRACE_D48
                 : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)));
  } else {
    asm volatile(TERRACE_PRODUCT("128", TERRACE_NAMES64, "%64, %65", "%66", "0, 0")
                 : TERRACE_D64
                 : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)));
  }
}

template <int n>
__device__ __forceinline__ void multiply_async_transposed(float (&d)[n][4], const std::uint32_t (&a)[4], MatrixDescriptor b,
                                                          bool add) {
  static_assert(n == 8 || n == 12 || n == 16, "a product of another width is not written yet");
  if constexpr (n == 8) {
    asm volatile(TERRACE_PRODUCT("64", TERRACE_NAMES32, "{%32, %33, %34, %35}, %36", "%37", "1")
                 : TERRACE_D32
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(add)));
  } else if constexpr (n == 12) {
    asm volatile(TERRACE_PRODUCT("96", TERRACE_NAMES48, "{%48, %49, %50, %51}, %52", "%53", "1")
                 : TERRACE_D48
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(add)));
  } else {
    asm volatile(TERRACE_PRODUCT("128", TERRACE_NAMES64, "{%64, %65, %66, %67}, %68", "%69", "1")
                 : TERRACE_D64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(add)));
  }
}

#undef TERRACE_D4
#undef TERRACE_D16
#undef TERRACE_D32
#undef TERRACE_D48
#undef TERRACE_D64
#undef TERRACE_NAMES32
#undef TERRACE_NAMES48
#undef TERRACE_NAMES64
#undef TERRACE_PRODUCT

// Stops the compiler from reading these earlier, and from assuming what they hold.
template <int n>
__device__ __forceinline__ void touch(float (&d)[n][4]) {
  TERRACE_UNROLL
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
}

}  // namespace terrace::cuda::ptx
