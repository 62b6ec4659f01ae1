// XXH3-64 for each instruction set: all give the same number, at different speeds.
//
// Threads: any. Errors: none; a kernel must not be called on a processor without its instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace terrace::store {

using ChecksumKernel = std::uint64_t (*)(const std::byte* data, std::size_t bytes);
std::uint64_t checksum_baseline(const std::byte* data, std::size_t bytes);
std::uint64_t checksum_avx2(const std::byte* data, std::size_t bytes);
std::uint64_t checksum_avx512(const std::byte* data, std::size_t bytes);

std::vector<ChecksumKernel> checksum_kernels();  // those that this processor can run, the fastest one last

}  // namespace terrace::store
