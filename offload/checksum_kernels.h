// XXH3-64 for each instruction set: the same number, at another speed.
//
// Threads: any. Errors: none; one that this processor does not have must not be called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace terrace {

using ChecksumKernel = std::uint64_t (*)(const std::byte* data, std::size_t bytes);
std::uint64_t checksum_baseline(const std::byte* data, std::size_t bytes);
std::uint64_t checksum_avx2(const std::byte* data, std::size_t bytes);
std::uint64_t checksum_avx512(const std::byte* data, std::size_t bytes);

std::vector<ChecksumKernel> checksum_kernels();  // those that run here, the fastest one last

}  // namespace terrace
