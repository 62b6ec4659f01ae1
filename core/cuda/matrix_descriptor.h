// Describes the layout of a bf16 matrix in shared memory to the asynchronous products of a warpgroup (lane.h; PTX ISA, "Matrix
// Descriptor Format"; layouts: CUTLASS, mma_traits_sm90_gmma.hpp, "canonical layouts").
//
// A matrix is made of atoms. An atom has eight rows, one below the other, each as wide as the swizzle. The swizzle permutes the
// places of 16 bytes in a row: it exclusive-ors bits 7 and up of an address onto bits 4 and up, so that eight places below each
// other lie in different banks. An atom begins where that pattern does, at a multiple of its 1,024, 512 or 256 bytes.
//
//   rows along k          element (r, k) in row r of an atom; leading: not used; stride: from eight rows to the next eight
//   transposed, rows of k element (k, n); leading: from an atom's columns to the next atom's; stride: from eight rows to
//                         the next eight
//
// Owner, threads: values.
#pragma once

#include <cstdint>

#include <terrace/core/cuda/lane.h>

namespace terrace::cuda {

enum class Swizzle : std::uint8_t { none = 0, bytes128 = 1, bytes64 = 2, bytes32 = 3 };  // the values of the descriptor's field

struct MatrixDescriptor {
  std::uint64_t bits = 0;
};

// The offset after swizzling: its bits 7 and up are exclusive-ored onto bits 4 and up.
TERRACE_HD constexpr std::uint32_t swizzled(std::uint32_t offset, Swizzle swizzle) {
  const std::uint32_t mask = swizzle == Swizzle::none ? 0U : 8U >> (static_cast<unsigned>(swizzle) - 1);
  return mask == 0 ? offset : offset ^ ((offset >> 7 & (mask - 1)) << 4);
}

// All arguments are in bytes, multiples of 16.
TERRACE_HD constexpr MatrixDescriptor matrix_descriptor(std::uint32_t address, std::uint32_t leading, std::uint32_t stride,
                                                        Swizzle swizzle) {
  const auto field = [](std::uint32_t bytes) { return static_cast<std::uint64_t>((bytes & 0x3ffffU) >> 4); };
  return {field(address) | field(leading) << 16 | field(stride) << 32 | static_cast<std::uint64_t>(swizzle) << 62};
}
// The matrix that begins `bytes` later.
TERRACE_HD constexpr MatrixDescriptor behind(MatrixDescriptor from, std::uint32_t bytes) { return {from.bits + (bytes >> 4)}; }

}  // namespace terrace::cuda
