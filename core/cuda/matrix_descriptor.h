// How a matrix lies in shared memory, as the asynchronous products of a warpgroup are told (lane.h; PTX ISA, "Matrix Descriptor
// Format"; layouts: CUTLASS, mma_traits_sm90_gmma.hpp, "canonical layouts"). Of bf16.
//
// A matrix is made of atoms of eight rows under one another, each as wide as the swizzle. Places of 16 bytes in a row are
// exchanged: bits 4 and up of an address with the bits 7 and up, so that eight places under one another lie in different banks.
// Atoms begin where that pattern does, at a multiple of its 1,024, 512 or 256 bytes.
//
//   rows along k          element (r, k) of an atom's row r: leading bytes are not used; stride: from eight rows to the next
//   transposed, rows of k element (k, n): leading: from an atom's columns to the next atom's; stride: from eight rows to the
//   next
//
// Owner, threads: values.
#pragma once

#include <cstdint>

#include <terrace/core/cuda/lane.h>

namespace terrace::cuda {

enum class Swizzle : std::uint8_t { none = 0, bytes128 = 1, bytes64 = 2, bytes32 = 3 };  // as the descriptor has it

struct MatrixDescriptor {
  std::uint64_t bits = 0;
};

// What is exchanged: bits 7 and up of an offset that are added (exclusive or) to bits 4 and up.
TERRACE_HD constexpr std::uint32_t swizzled(std::uint32_t offset, Swizzle swizzle) {
  const std::uint32_t mask = swizzle == Swizzle::none ? 0U : 8U >> (static_cast<unsigned>(swizzle) - 1);
  return mask == 0 ? offset : offset ^ ((offset >> 7 & (mask - 1)) << 4);
}

// All in bytes, multiples of 16.
TERRACE_HD constexpr MatrixDescriptor matrix_descriptor(std::uint32_t address, std::uint32_t leading, std::uint32_t stride,
                                                        Swizzle swizzle) {
  const auto field = [](std::uint32_t bytes) { return static_cast<std::uint64_t>((bytes & 0x3ffffU) >> 4); };
  return {field(address) | field(leading) << 16 | field(stride) << 32 | static_cast<std::uint64_t>(swizzle) << 62};
}
// The matrix that begins so many bytes behind.
TERRACE_HD constexpr MatrixDescriptor behind(MatrixDescriptor from, std::uint32_t bytes) { return {from.bits + (bytes >> 4)}; }

}  // namespace terrace::cuda
