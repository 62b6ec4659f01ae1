// The Lane (lane.h) of a GPU, and the launch of a kernel on a stream. For .cu files.
//
// Threads: launch() from the thread that issues on the stream, with the device current.
// Errors:  launch() throws Error with the kernel's shape and CUDA's reason. A failure while the kernel runs is reported by the
//          stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include <terrace/core/base/error.h>
#include <terrace/core/cuda/cuda_products.h>
#include <terrace/core/cuda/lane.h>

namespace terrace::cuda {

extern __shared__ __align__(128) unsigned char shared_memory[];

class CudaLane {
 public:
  // Takes the value of lane 0 for the whole warp, so that the compiler knows that code which depends on it does not diverge.
  __device__ __forceinline__ CudaLane() : warp_(__shfl_sync(kAll, static_cast<int>(threadIdx.x) / kWarp, 0)) {}

  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ __forceinline__ int warp() const { return warp_; }
  __device__ __forceinline__ int warp_lane() const { return thread() % kWarp; }
  __device__ __forceinline__ int block_x() const { return static_cast<int>(blockIdx.x); }
  __device__ __forceinline__ int block_y() const { return static_cast<int>(blockIdx.y); }
  __device__ __forceinline__ int block_z() const { return static_cast<int>(blockIdx.z); }
  __device__ __forceinline__ int blocks_x() const { return static_cast<int>(gridDim.x); }
  __device__ __forceinline__ int blocks_y() const { return static_cast<int>(gridDim.y); }

  __device__ __forceinline__ std::byte* shared() const { return reinterpret_cast<std::byte*>(shared_memory); }

  __device__ __forceinline__ void sync() const { __syncthreads(); }
  __device__ __forceinline__ void sync_warp() const { __syncwarp(); }
  template <class T>
  __device__ __forceinline__ T shuffle_xor(T value, int mask) const {
    return __shfl_xor_sync(kAll, value, mask);
  }
  template <class T>
  __device__ __forceinline__ T shuffle(T value, int from) const {
    return __shfl_sync(kAll, value, from);
  }

  __device__ __forceinline__ bool any(bool value) const { return __any_sync(kAll, value) != 0; }

  __device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], const void* row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
  }
  __device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
  }
  __device__ __forceinline__ void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                           std::uint32_t b1) const {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }

  __device__ __forceinline__ void copy_async(void* to_shared, const void* from, bool valid) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to_shared)), "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
                 : "memory");
  }
  __device__ __forceinline__ void commit_copies() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int n>
  __device__ __forceinline__ void wait_copies(Pending<n>) const {
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
  }

  template <int n>
  __device__ __forceinline__ void multiply_async(float (&d)[n][4], MatrixDescriptor a, MatrixDescriptor b, bool add) const {
    ptx::multiply_async(d, a, b, add);
  }
  template <int n>
  __device__ __forceinline__ void multiply_async_transposed(float (&d)[n][4], const std::uint32_t (&a)[4], MatrixDescriptor b,
                                                            bool add) const {
    ptx::multiply_async_transposed(d, a, b, add);
  }
  __device__ __forceinline__ void fence_products() const { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
  __device__ __forceinline__ void commit_products() const { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
  template <int n, class... Sums>
  __device__ __forceinline__ void wait_products(Pending<n>, Sums&... ended) const {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
    (ptx::touch(ended), ...);
  }
  __device__ __forceinline__ void fence_shared() const { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
  __device__ __forceinline__ static std::uint32_t shared_address(const void* p) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
  }

 private:
  static constexpr unsigned kAll = 0xffffffffU;
  int warp_;
};

template <class Kernel>
constexpr int max_threads_of() {
  if constexpr (requires { Kernel::kThreads; }) {
    return Kernel::kThreads;
  } else {
    return 1024;
  }
}
template <class Kernel>
constexpr int min_blocks_of() {
  if constexpr (requires { Kernel::kMinBlocks; }) {
    return Kernel::kMinBlocks;
  } else {
    return 1;
  }
}

template <class Kernel, class Args>
__global__ void __launch_bounds__(max_threads_of<Kernel>(), min_blocks_of<Kernel>())
    run_kernel(const __grid_constant__ Args args) {
  CudaLane lane;
  Kernel{}(lane, args);
}

// `stream` is a cudaStream_t. A kernel that defines kThreads (and kMinBlocks, blocks per multiprocessor) is compiled for these.
template <class Kernel, class Args>
void launch(void* stream, const LaunchShape& shape, const Args& args) {
  const auto check = [&](const char* call, cudaError_t error) {
    if (error == cudaSuccess) return;
    throw Error(std::string(call) + " of a kernel of " + std::to_string(shape.blocks[0]) + "×" +
                std::to_string(shape.blocks[1]) + "×" + std::to_string(shape.blocks[2]) + " blocks, " +
                std::to_string(shape.threads) + " threads and " + std::to_string(shape.shared_bytes) +
                " bytes of shared memory: " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
  };
  if (shape.blocks[0] == 0 || shape.blocks[1] == 0 || shape.blocks[2] == 0) return;
  constexpr std::size_t kWithoutAsking = 48 * 1024;
  if (shape.shared_bytes > kWithoutAsking) {
    check("cudaFuncSetAttribute", cudaFuncSetAttribute(run_kernel<Kernel, Args>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       static_cast<int>(shape.shared_bytes)));
  }
  const dim3 blocks(static_cast<unsigned>(shape.blocks[0]), static_cast<unsigned>(shape.blocks[1]),
                    static_cast<unsigned>(shape.blocks[2]));
  run_kernel<Kernel>
      <<<blocks, static_cast<unsigned>(shape.threads), shape.shared_bytes, static_cast<cudaStream_t>(stream)>>>(args);
  check("The launch", cudaGetLastError());
}

}  // namespace terrace::cuda
