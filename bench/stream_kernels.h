// Loops that do nothing but move bytes: the limits that copies and updates are measured against.
//
// A kernel works on `count` elements from `begin` of its arrays. The bytes that count are those that the loop names, not what a
// cache fetches besides.
//
// Threads: any, on disjoint elements. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace terrace::bench {

// Any of them may be null where a kernel does not use it.
struct StreamArrays {
  float *a = nullptr, *b = nullptr, *c = nullptr, *d = nullptr;
  std::uint16_t *half_in = nullptr, *half_out = nullptr;  // bf16: gradients, and the weights to compute with
};

struct StreamKernel {
  std::string_view name;
  int read_bytes, write_bytes;  // of one element
  void (*run)(const StreamArrays& arrays, std::size_t begin, std::size_t count);
};

// read, write, copy, copy_nt (stores past the cache), triad, adamw: the traffic of an AdamW update in fp32.
std::span<const StreamKernel> stream_kernels();

// The traffic of an AdamW update of other recipes: four fp32 arrays read and three written; gradients of bf16 in place of fp32,
// or a bf16 weight written besides.
const StreamKernel& adamw_stream(bool bf16_gradient, bool bf16_copy);

}  // namespace terrace::bench
