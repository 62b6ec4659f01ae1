// Loops that only move bytes: the limits against which copies and updates are measured.
//
// A kernel works on `count` elements from `begin` on in its arrays. The counted bytes are those that the loop reads and writes,
// not those that a cache fetches in addition.
//
// Threads: any, on disjoint elements. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace terrace::bench {

// A pointer may be null if the kernel does not use it.
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

// The traffic of an AdamW update with other recipes: four fp32 arrays are read and three written; optionally the gradients are
// bf16 instead of fp32, or a bf16 copy of the weights is written as well.
const StreamKernel& adamw_stream(bool bf16_gradient, bool bf16_copy);

}  // namespace terrace::bench
