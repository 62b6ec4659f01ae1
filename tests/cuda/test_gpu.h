// The GPU that tests of the CUDA math run on; each program links one definition.
//
//   emulated_gpu  The CUDA device over the fake runtime, whose streams run our kernels through the emulated lane. So its math
//                 is what a GPU runs: the operations of core/cuda/math, geometry and all, and the kernels' own sources. Matrix
//                 products go through core/cuda/math/cublas_products.cpp to a made-up cuBLASLt, or are the CPU's where its
//                 header is missing. The kernels reach all memory of the test.
//   real_gpu      The GPU of this machine. Without one every test of the program is skipped.
//
// Tensors of tests lie in memory of a device, between guard zones, as training has them (tests/support/mirrored_bytes.h,
// kernel_case.h).
//
// Owner:   the caller; the pool is borrowed and must outlive it.
// Threads, errors: as a CUDA device; misuse of the fake runtime is a failure of the test.
#pragma once

#include <cstddef>
#include <memory>

#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>

namespace terrace::test {

std::unique_ptr<Device> make_test_gpu(ThreadPool& pool);
// Between its memory and the test's, at once: nothing else uses either. The stream is one of its.
void copy_of_test_gpu(Stream& stream, std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace terrace::test
