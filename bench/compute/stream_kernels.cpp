#include <terrace/bench/compute/stream_kernels.h>

#include <terrace/bench/compute/stream_table.h>

namespace terrace::bench {

namespace {

constexpr std::size_t kPublic = 6, kAdamW = 5;

}  // namespace

std::span<const StreamKernel> stream_kernels() { return {stream_table(), kPublic}; }

const StreamKernel& adamw_stream(bool bf16_gradient, bool bf16_copy) {
  return stream_table()[kAdamW + (bf16_gradient ? 2 : 0) + (bf16_copy ? 1 : 0)];
}

}  // namespace terrace::bench
