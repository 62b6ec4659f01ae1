// The emulated GPU of test_gpu.h, whose attention a cuDNN may make: a made-up one computes where it is called, on the issuing
// thread, and so reaches all memory of the test.
#pragma once

#include <memory>

#include <terrace/core/cuda/cudnn/attention.h>
#include <terrace/core/device.h>
#include <terrace/core/thread_pool.h>

namespace terrace::test {

std::unique_ptr<Device> make_emulated_gpu(ThreadPool& pool, const cuda::cudnn::AttentionOptions& attention);

}  // namespace terrace::test
