// The device of a handle, and the caller's streams on it.
//
// Owner:   the handle. Threads: any. Errors: those of make_cuda_device() and adopt_stream().
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/offload/manager/chunk_manager.h>
#include <terrace/optimizers/c/terrace.h>

namespace terrace::c {

class HandleDevice {
 public:
  explicit HandleDevice(const terrace_chunks_options& options);
  [[nodiscard]] Device& device() { return *device_; }
  // Null for null. A stream is adopted once, and lives as long as the handle.
  Stream* stream(void* native);

 private:
  ThreadPool pool_;
  std::unique_ptr<Device> device_;
  std::mutex mutex_;
  std::map<void*, std::unique_ptr<Stream>> streams_;
};

OffloadOptions offload_options(const terrace_chunks_options& options, Device& device);

}  // namespace terrace::c
