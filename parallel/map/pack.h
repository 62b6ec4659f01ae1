// Tensors in a row inside one buffer, each aligned to 64 bytes.
//
// Pure. Threads: a value after construction. Borrows nothing: views() places the tensors in the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <terrace/core/math/tensor.h>

namespace terrace::mapping {

struct Pack {
  std::vector<TensorSpec> tensors;
  std::vector<std::uint64_t> offsets;
  std::uint64_t bytes = 0;  // whole pages; 0 when there are no tensors
  explicit Pack(std::vector<TensorSpec> specs = {});
  [[nodiscard]] std::vector<TensorView> views(std::byte* base) const;  // empty ones without a base
};

}  // namespace terrace::mapping
