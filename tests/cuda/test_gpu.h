// The GPU for the tests of the CUDA math; each program links one of two definitions.
//
//   emulated_gpu  The CUDA device over the fake runtime, whose streams run terrace's kernels through the emulated lane. So its
//                 math is what a GPU runs: the operations of core/cuda/math with their launch geometry, and the kernels' own
//                 sources. Matrix products go through core/cuda/math/cublas_products.cpp to a fake cuBLASLt, or are the
//                 CPU's if its header is missing. The kernels can access all memory of the test.
//   real_gpu      The GPU of this machine. Without one, every test of the program is skipped.
//
// Tensors of tests are in device memory between guard zones, as in training (tests/support/mirrored_bytes.h, kernel_case.h).
//
// Owner:   the caller; the pool is borrowed and must outlive it.
// Threads, errors: as for a CUDA device; misuse of the fake runtime fails the test.
#pragma once

#include <cstddef>
#include <memory>

#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>

namespace terrace::test {

std::unique_ptr<Device> make_test_gpu(ThreadPool& pool);
// Copies between the GPU's memory and the test's, immediately: nothing else may use either. `stream` belongs to the GPU.
void copy_of_test_gpu(Stream& stream, std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace terrace::test
