#include <terrace/optimizers/formats/format.h>

#include <stdexcept>
#include <string>

#include <terrace/optimizers/formats/dynamic8.h>

namespace terrace::rules {

std::string_view name_of(Format format) {
  switch (format) {
    case Format::none: return "none";
    case Format::fp32: return "fp32";
    case Format::bf16: return "bf16";
    case Format::fp16: return "fp16";
    case Format::fp64: return "fp64";
    case Format::low16: return "low16";
    case Format::low8: return "low8";
    case Format::dynamic8: return "dynamic8";
    case Format::dynamic8_unsigned: return "dynamic8-unsigned";
    case Format::packed: return "packed";
    case Format::packed64: return "packed64";
  }
  return "?";
}

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::fp32: return Format::fp32;
    case DType::bf16: return Format::bf16;
    case DType::fp64: return Format::fp64;
    case DType::fp16: return Format::fp16;
    case DType::i32:
    case DType::e4m3:
    case DType::e5m2: break;
  }
  throw std::logic_error("weights and states are neither integers nor operands of 8 bits");
}

DType dtype_of_format(Format format) {
  switch (format) {
    case Format::fp32: return DType::fp32;
    case Format::bf16: return DType::bf16;
    case Format::fp64: return DType::fp64;
    case Format::fp16: return DType::fp16;
    default: throw std::logic_error(std::string(name_of(format)) + " is not a dtype");
  }
}

std::uint64_t bytes_of(Format format, std::uint64_t elements) {
  switch (format) {
    case Format::none: return 0;
    case Format::fp32:
    case Format::packed: return 4 * elements;
    case Format::bf16:
    case Format::fp16:
    case Format::low16: return 2 * elements;
    case Format::low8: return elements;
    case Format::fp64:
    case Format::packed64: return 8 * elements;
    case Format::dynamic8:
    case Format::dynamic8_unsigned: return static_cast<std::uint64_t>(dynamic8::bytes_of(static_cast<std::int64_t>(elements)));
  }
  return 0;
}

}  // namespace terrace::rules
