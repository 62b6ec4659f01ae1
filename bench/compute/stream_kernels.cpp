#include <terrace/bench/compute/stream_kernels.h>

#include <terrace/core/machine/machine.h>

namespace terrace::bench {

namespace baseline {
extern const StreamKernel kKernels[9];
}
namespace avx2 {
extern const StreamKernel kKernels[9];
}
namespace avx512 {
extern const StreamKernel kKernels[9];
}

namespace {

constexpr std::size_t kPublic = 6, kAdamW = 5;

const StreamKernel* table() {
  static const std::string simd = read_topology().simd;
  return simd == "avx512" ? avx512::kKernels : simd == "avx2" ? avx2::kKernels : baseline::kKernels;
}

}  // namespace

std::span<const StreamKernel> stream_kernels() { return {table(), kPublic}; }

const StreamKernel& adamw_stream(bool bf16_gradient, bool bf16_copy) {
  return table()[kAdamW + (bf16_gradient ? 2 : 0) + (bf16_copy ? 1 : 0)];
}

}  // namespace terrace::bench
