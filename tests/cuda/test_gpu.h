// The GPU that tests of the CUDA math run on; each program links one definition.
//
//   emulated_gpu  The CUDA device over the fake runtime, whose streams run our kernels through the emulated lane. So its math
//                 is what a GPU runs: the operations of core/cuda/math, geometry and all, and the kernels' own sources. Matrix
//                 products go through core/cuda/math/cublas_products.cpp to a made-up cuBLASLt, or are the CPU's where its
//                 header is missing. The kernels reach all memory of the test.
//   real_gpu      The GPU of this machine. Without one every test of the program is skipped. Tensors of the test lie in host
//   memory
//                 that is registered, which kernels reach in place.
//
// Owner:   the caller; the pool is borrowed and must outlive it.
// Threads, errors: as a CUDA device; misuse of the fake runtime is a failure of the test.
#pragma once

#include <memory>

#include <terrace/core/device.h>
#include <terrace/core/thread_pool.h>

namespace terrace::test {

std::unique_ptr<Device> make_test_gpu(ThreadPool& pool);

}  // namespace terrace::test
