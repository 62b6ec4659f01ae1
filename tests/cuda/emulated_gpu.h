// The emulated GPU of test_gpu.h with what a test wants to say of its attention.
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

// What the warpgroups' kernels do there.
enum class Warpgroups {
  none,       // the GPU has no such products
  right,      // what its source says
  wrong,      // and then some zeros where they do not belong
  unwritten,  // nothing: its results stay as they were
  unsteady,   // what their source says, but every other time some results are a little larger
  refused,    // cannot be launched
};

struct EmulatedGpu {
  Warpgroups warpgroups = Warpgroups::right;
  std::string kernel = {};                           // forced, as by TERRACE_ATTENTION_KERNEL
  std::atomic<int>* issued_by_warpgroups = nullptr;  // counts calls of their kernels; null: not counted
  // Told of each kernel that is launched, by its operation of core/math/math.h, and of each product ("matmul").
  std::function<void(const char* operation)> launched = {};
  std::string algorithms = {}, machine_algorithms = {};
  std::size_t shared_bytes = 227 * 1024;  // of a block
  // A made-up cuDNN computes where it is called, on the issuing thread, and so reaches all memory of the test.
  cuda::cudnn::AttentionOptions cudnn = {};
};
std::unique_ptr<Device> make_emulated_gpu(ThreadPool& pool, const EmulatedGpu& gpu);

}  // namespace terrace::test
