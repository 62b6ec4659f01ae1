#include <terrace/offload/store/checksum_kernels.h>

namespace terrace::store {

std::vector<ChecksumKernel> checksum_kernels() { return {checksum_baseline}; }

}  // namespace terrace::store
