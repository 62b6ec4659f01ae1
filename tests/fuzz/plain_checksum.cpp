// The store's checksum without a choice of instruction sets, so that one compiler command builds it.
#include <xxhash.h>

#include <terrace/offload/store/chunk_store.h>

namespace terrace {

std::uint64_t checksum_of(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace terrace
