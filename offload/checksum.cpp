#include <terrace/offload/checksum_kernels.h>
#include <terrace/offload/chunk_store.h>

namespace terrace {

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  static const ChecksumKernel fastest = checksum_kernels().back();
  return fastest(bytes.data(), bytes.size());
}

}  // namespace terrace
