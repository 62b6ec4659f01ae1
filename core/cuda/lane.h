// The interface that kernels are written against: a Lane is one thread of a block. The same source runs on a GPU (CudaLane,
// cuda_lane.h) and, in tests, on the host (EmulatedLane, tests/support/gpu/emulated_lane.h), where the threads of a block are
// fibers.
//
// A kernel is a struct:
//
//   struct AddRows {
//     template <class Lane>
//     TERRACE_KERNEL void operator()(Lane& lane, const AddArgs& args) const;  // in a header
//   };
//   launch<AddRows>(stream, {.blocks = {rows}, .threads = 256}, args);         // in a .cu file
//   test::emulate<AddRows>({.blocks = {rows}, .threads = 256}, args);          // in its test
//
// Args is a trivially copyable struct of pointers and numbers, at most 4 KiB. Offsets into tensors are std::int64_t. A kernel
// may define kThreads, the most threads of a launch, and kMinBlocks, the blocks per multiprocessor that its registers must
// allow.
//
// A Lane has:
//
//   int thread(), threads(), warp(), warp_lane();   // 0 ≤ thread() < threads(), a multiple of 32
//   int block_x(), block_y(), block_z(), blocks_x(), blocks_y();
//   std::byte* shared();                            // dynamic shared memory, aligned to 128, undefined at first; shared_as()
//   void sync();                                    // all threads of the block: none may have ended
//   void sync_warp();                               // all 32 of the warp; orders their shared memory too
//   T shuffle_xor(T value, int mask);               // of 4 or 8 bytes; all 32 of the warp
//   T shuffle(T value, int from);
//   bool any(bool value);
//
// and for tensor cores, all 32 threads of a warp together, with the fragments of the PTX ISA ("Matrix Fragments for
// mma.m16n8k16", "ldmatrix"):
//
//   // Four matrices of 8 × 8: thread t names row t % 8 of matrix t / 8, 16 bytes in shared memory, aligned to 16.
//   void load_matrices(std::uint32_t (&r)[4], const void* row);
//   void load_matrices_transposed(std::uint32_t (&r)[4], const void* row);
//   // d[16,8] += a[16,16] · b[16,8], of bf16
//   void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
//
// and copies from global to shared memory that run beside computing. A thread sees its own copies after the wait; the others
// see them after a sync() that follows the wait:
//
//   // 16 bytes, both aligned to 16. Not valid: zeros, `from` is not read.
//   void copy_async(void* to_shared, const void* from, bool valid);
//   void commit_copies();                           // what was begun since the last call is one group
//   template <int n> void wait_copies(Pending<n>);  // until at most n groups of this thread are under way
//
// and, on compute capability 9.0 only (code for sm_90a), products that run beside computing. A warpgroup makes them: four
// warps, the first of which has a number divisible by four. All its threads must call each of these functions with the same
// descriptors (matrix_descriptor.h; PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"). Each warp has 16 of the 64
// rows of a and d; in registers, they are arranged as for multiply().
//
//   // d[64,8·n] = a[64,16] · b[16,8·n], or += if `add`. b is stored by columns: its column n is row n of the stored matrix;
//   // for multiply_async_transposed(), b is stored by rows.
//   template <int n> void multiply_async(float (&d)[n][4], MatrixDescriptor a, MatrixDescriptor b, bool add);
//   template <int n> void multiply_async_transposed(float (&d)[n][4], const std::uint32_t (&a)[4], MatrixDescriptor b,
//                                                   bool add);
//   // Required between any access to the registers d and a and the product that uses them.
//   void fence_products();
//   void commit_products();                         // what was begun since the last call is one group
//   // Waits until at most n groups of this warp are under way; `ended` names the sums that may be used from here on.
//   template <int n, class... Sums> void wait_products(Pending<n>, Sums&... ended);
//   // Makes this thread's completed writes to shared memory visible to products after the next sync().
//   void fence_shared();
//   std::uint32_t shared_address(const void*);      // of shared memory, as descriptors have it; shared() may lie at any 128
//
// From its start until the wait for it, a product reads its shared memory and the registers a, and writes d. Meanwhile no
// thread may write that shared memory or the registers a, or access d. Arrays passed to products live as long as the kernel.
//
// Threads: a Lane belongs to its thread. Nothing here is atomic: results depend on operand values and shapes only.
// Build:   .cu files are compiled with --expt-relaxed-constexpr, so that constexpr functions of the standard library
//          (std::bit_cast) work on both sides.
#pragma once

#if defined(__CUDACC__)
#define TERRACE_HD __host__ __device__ __forceinline__
#define TERRACE_KERNEL __device__ __forceinline__
#define TERRACE_UNROLL _Pragma("unroll")
#else
#define TERRACE_HD inline
#define TERRACE_KERNEL inline
#define TERRACE_UNROLL
#endif

#include <array>
#include <cstddef>
#include <cstdint>

namespace terrace::cuda {

inline constexpr int kWarp = 32;

// The shape of a launch. blocks: x up to 2^31 − 1, y and z up to 65,535.
struct LaunchShape {
  std::array<std::int64_t, 3> blocks = {1, 1, 1};
  int threads = kWarp;
  std::size_t shared_bytes = 0;
};

// The shared memory from byte `offset` on: shared_as<float>(lane, 1024).
template <class T, class Lane>
TERRACE_KERNEL T* shared_as(Lane& lane, std::size_t offset = 0) {
  return reinterpret_cast<T*>(lane.shared() + offset);
}

template <int n>
struct Pending {};

}  // namespace terrace::cuda
