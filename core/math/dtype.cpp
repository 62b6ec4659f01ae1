#include <terrace/core/math/dtype.h>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::fp32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::fp64: return "fp64";
    case DType::fp16: return "fp16";
    case DType::i32: return "i32";
    case DType::e4m3: return "e4m3";
    case DType::e5m2: return "e5m2";
  }
  return "?";
}

DType parse_dtype(std::string_view text) {
  for (const auto dtype : {DType::fp32, DType::bf16, DType::fp64, DType::fp16, DType::i32}) {
    if (name_of(dtype) == text) return dtype;
  }
  throw Error(fmt::format("\"{}\" is not a dtype; accepted are fp32, bf16, fp64, fp16 and i32", text), ErrorKind::refused);
}

}  // namespace terrace
