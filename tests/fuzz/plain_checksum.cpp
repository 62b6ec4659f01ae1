// The store's checksum without its choice of instruction sets, for a build by one command.
#include <xxhash.h>

#include <terrace/offload/store/chunk_store.h>

namespace terrace {

std::uint64_t checksum_of(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace terrace
