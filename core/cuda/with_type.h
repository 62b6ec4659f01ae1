// Maps a dtype to the type for which a kernel is instantiated.
//
// Threads: any. Errors: std::logic_error if it is not a compute dtype.
#pragma once

#include <stdexcept>

#include <terrace/core/cuda/arithmetic.h>
#include <terrace/core/math/dtype.h>

namespace terrace::cuda {

// Calls f.template operator()<T>() with the storage type of a compute dtype.
template <class F>
void with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::fp32: return f.template operator()<float>();
    case DType::bf16: return f.template operator()<bf16>();
    case DType::fp64: return f.template operator()<double>();
    case DType::fp16: return f.template operator()<fp16>();
    case DType::i32:
    case DType::e4m3:
    case DType::e5m2: break;
  }
  throw std::logic_error("math: this is not a compute dtype");
}

}  // namespace terrace::cuda
