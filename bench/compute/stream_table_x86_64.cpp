#include <terrace/bench/compute/stream_table.h>

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

const StreamKernel* stream_table() {
  static const std::string simd = read_topology().simd;
  return simd == "avx512" ? avx512::kKernels : simd == "avx2" ? avx2::kKernels : baseline::kKernels;
}

}  // namespace terrace::bench
