#include <terrace/core/math/tensor.h>

#include <fmt/format.h>

namespace terrace {

std::string to_string(const Shape& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.rank(); ++i) out += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return out + "]";
}

}  // namespace terrace
