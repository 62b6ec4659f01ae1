// XXH3 for AVX-512. Compiled with its own options; see offload/CMakeLists.txt.
#define XXH_INLINE_ALL  // compiled here with this file's options; the installed library targets every x86-64
#include <xxhash.h>

#include <terrace/offload/store/checksum_kernels.h>

namespace terrace::store {

std::uint64_t checksum_avx512(const std::byte* data, std::size_t bytes) { return XXH3_64bits(data, bytes); }

}  // namespace terrace::store
