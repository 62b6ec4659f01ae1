// The emulated GPU of test_gpu.h with settings for its attention.
//
// Owner: the caller; the pool is borrowed. Threads, errors: as make_test_gpu().
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include <terrace/core/cuda/cudnn/attention.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>

namespace terrace::test {

// Behaviour of the warpgroups' kernels.
enum class Warpgroups {
  none,       // the GPU has no such products
  right,      // as in the source
  wrong,      // as in the source, then some wrong zeros
  unwritten,  // no effect: results stay unchanged
  unsteady,   // as in the source, but every second time some results are a little larger
  refused,    // launching fails
};

struct EmulatedGpu {
  Warpgroups warpgroups = Warpgroups::right;
  std::string kernel = {};                           // forced, as by CudaOptions::attention_kernel
  std::atomic<int>* issued_by_warpgroups = nullptr;  // counts calls of their kernels; null: not counted
  // Called for each launched kernel with its operation of core/math/math.h, and for each product with "matmul".
  std::function<void(const char* operation)> launched = {};
  std::string algorithms = {}, machine_algorithms = {};
  std::size_t shared_bytes = 227 * 1024;  // per block
  // A fake cuDNN computes immediately on the issuing thread, so it can access all memory of the test.
  cuda::cudnn::AttentionOptions cudnn = {};
};
std::unique_ptr<Device> make_emulated_gpu(ThreadPool& pool, const EmulatedGpu& gpu);

}  // namespace terrace::test
