// Tells which processors give the same bits. Only for matrix products does a library choose its code by the processor; all
// other operations have one source for every instruction set (core/math/cpu/kernels.h).
//
// Threads: any. Errors: none.
#pragma once

#include <string>

#include <terrace/core/math/dtype.h>

namespace terrace::math {

// "fp32 products of oneDNN 3.7.0 with AVX2". Machines with the same text compute the same bits in this dtype
// (docs/internals/testing.md, "Which processors give the same bits").
std::string product_group(DType dtype);

}  // namespace terrace::math
