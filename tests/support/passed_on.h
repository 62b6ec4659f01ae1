// A CUDA runtime that forwards every call to a fake one; tests derive faulty runtimes from it.
//
// Owner: the test; the fake is shared. Threads, errors: the fake's.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <terrace/tests/support/gpu/fake_cuda.h>

namespace terrace::test {

class PassedOn : public cuda::CudaRuntime {
 public:
  explicit PassedOn(std::shared_ptr<FakeCuda> fake) : fake_(std::move(fake)) {}

  int device_count(int* count) override { return fake_->device_count(count); }
  int properties(int device, cuda::CudaProperties* properties) override { return fake_->properties(device, properties); }
  int set_device(int device) override { return fake_->set_device(device); }
  int memory_info(std::size_t* free, std::size_t* total) override { return fake_->memory_info(free, total); }
  int allocate(void** data, std::size_t bytes) override { return fake_->allocate(data, bytes); }
  int free(void* data) override { return fake_->free(data); }
  int register_host(void* data, std::size_t bytes) override { return fake_->register_host(data, bytes); }
  int unregister_host(void* data) override { return fake_->unregister_host(data); }
  int create_stream(cuda::CudaStreamHandle* stream) override { return fake_->create_stream(stream); }
  int destroy_stream(cuda::CudaStreamHandle stream) override { return fake_->destroy_stream(stream); }
  int synchronize_stream(cuda::CudaStreamHandle stream) override { return fake_->synchronize_stream(stream); }
  int copy_async(void* to, const void* from, std::size_t bytes, cuda::CudaStreamHandle stream) override {
    return fake_->copy_async(to, from, bytes, stream);
  }
  int launch(const cuda::CudaLaunch& launch, cuda::CudaStreamHandle stream) override { return fake_->launch(launch, stream); }
  int allow_shared_bytes(const void* kernel, std::size_t bytes) override { return fake_->allow_shared_bytes(kernel, bytes); }
  int stream_wait_event(cuda::CudaStreamHandle stream, cuda::CudaEventHandle event) override {
    return fake_->stream_wait_event(stream, event);
  }
  int create_event(cuda::CudaEventHandle* event) override { return fake_->create_event(event); }
  int destroy_event(cuda::CudaEventHandle event) override { return fake_->destroy_event(event); }
  int record_event(cuda::CudaEventHandle event, cuda::CudaStreamHandle stream) override {
    return fake_->record_event(event, stream);
  }
  int synchronize_event(cuda::CudaEventHandle event) override { return fake_->synchronize_event(event); }
  std::string error_name(int code) override { return fake_->error_name(code); }
  std::string error_text(int code) override { return fake_->error_text(code); }

 private:
  const std::shared_ptr<FakeCuda> fake_;
};

}  // namespace terrace::test
