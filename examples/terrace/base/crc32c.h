// CRC-32C (Castagnoli, RFC 3720 appendix B.4), as TensorBoard's files need it.
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <string_view>

namespace terrace::cli {

std::uint32_t crc32c(std::string_view bytes);

}  // namespace terrace::cli
