#include <terrace/offload/store/checksum_kernels.h>

namespace terrace {

std::vector<ChecksumKernel> checksum_kernels() { return {checksum_baseline}; }

}  // namespace terrace
