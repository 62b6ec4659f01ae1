#include <terrace/offload/store/checksum_kernels.h>

namespace terrace::store {

std::vector<ChecksumKernel> checksum_kernels() {
  __builtin_cpu_init();
  std::vector<ChecksumKernel> kernels{checksum_baseline};
  if (__builtin_cpu_supports("avx2")) kernels.push_back(checksum_avx2);
  if (__builtin_cpu_supports("avx512f")) kernels.push_back(checksum_avx512);
  return kernels;
}

}  // namespace terrace::store
