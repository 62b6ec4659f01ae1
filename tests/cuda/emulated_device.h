// The CUDA device without a GPU: over the fake runtime, whose streams run our kernels through the emulated lane. So its math is
// what a GPU runs: the operations of core/cuda/math, geometry and all, and the kernels' own sources. Matrix products, which no
// kernel of ours makes, are the CPU's. The kernels reach all memory of the test.
//
// Owner:   the caller; the pool is borrowed and must outlive it.
// Threads, errors: as a CUDA device; misuse of the runtime is a failure of the test.
#pragma once

#include <memory>

#include <terrace/core/device.h>
#include <terrace/core/thread_pool.h>

namespace terrace::test {

std::unique_ptr<Device> make_emulated_device(ThreadPool& pool);

}  // namespace terrace::test
