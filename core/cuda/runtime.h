// The calls of the CUDA runtime that terrace uses: the host side of the CUDA device reaches a GPU only through them. The real
// runtime, in the module, forwards every call (real_runtime.cpp); tests have one without a GPU (tests/support/gpu/fake_cuda.h).
//
// Owner:   shared by a device, its streams and its memory. Handles belong to the code that made them.
// Threads: any, as for CUDA. A thread calls set_device() before anything that belongs to a device.
// Errors:  every call returns CUDA's error code, 0 for success, and writes its results only on success. As in CUDA, a call may
//          return the error of work that was issued before it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <terrace/core/base/log.h>

// CUDA's own types, so that kernels are launched without a cast; opaque here.
struct CUstream_st;
struct CUevent_st;

namespace terrace::cuda {

using CudaStreamHandle = CUstream_st*;
using CudaEventHandle = CUevent_st*;
class CudaProfiler;

inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaOutOfMemory = 2;  // cudaErrorMemoryAllocation

struct CudaProperties {
  std::string name = {};
  std::string pci_bus_id = {};  // "0000:17:00.0"
  std::uint64_t memory_bytes = 0;
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  int copy_engines = 0;
  std::size_t shared_bytes = 0;  // most for one block, if allow_shared_bytes() was called
  std::size_t l2_bytes = 0;
};

// The launch of one kernel. All its arguments are in one struct, which the call copies.
struct CudaLaunch {
  const void* kernel = nullptr;  // the __global__ function; in tests, what the fake calls instead
  std::array<unsigned, 3> blocks{1, 1, 1};
  unsigned threads = 1;
  std::size_t shared_bytes = 0;
  const void* arguments = nullptr;
  std::size_t argument_bytes = 0;
};

class CudaRuntime {
 public:
  virtual ~CudaRuntime() = default;

  virtual int device_count(int* count) = 0;
  virtual int properties(int device, CudaProperties* properties) = 0;
  virtual int set_device(int device) = 0;  // for the calling thread
  virtual int memory_info(std::size_t* free_bytes, std::size_t* total_bytes) = 0;

  virtual int allocate(void** data, std::size_t bytes) = 0;
  virtual int free(void* data) = 0;
  // Makes these pages ones that the device copies from and to at full speed, and that kernels reach at the same address.
  virtual int register_host(void* data, std::size_t bytes) = 0;
  virtual int unregister_host(void* data) = 0;

  virtual int create_stream(CudaStreamHandle* stream) = 0;  // does not synchronise with the default stream
  virtual int destroy_stream(CudaStreamHandle stream) = 0;
  virtual int synchronize_stream(CudaStreamHandle stream) = 0;
  virtual int copy_async(void* to, const void* from, std::size_t bytes, CudaStreamHandle stream) = 0;  // between any two places
  virtual int launch(const CudaLaunch& launch, CudaStreamHandle stream) = 0;
  // Required before a kernel uses more than 48 KiB of shared memory.
  virtual int allow_shared_bytes(const void* kernel, std::size_t bytes) = 0;

  virtual int create_event(CudaEventHandle* event) = 0;  // without timing; a waiting thread sleeps
  virtual int destroy_event(CudaEventHandle event) = 0;
  virtual int record_event(CudaEventHandle event, CudaStreamHandle stream) = 0;
  virtual int synchronize_event(CudaEventHandle event) = 0;
  // Later work of the stream starts after the work that preceded the last recording of the event.
  virtual int stream_wait_event(CudaStreamHandle stream, CudaEventHandle event) = 0;

  // Null if no profiler is attached.
  [[nodiscard]] virtual CudaProfiler* profiler() { return nullptr; }

  [[nodiscard]] virtual std::string error_name(int code) = 0;  // "cudaErrorIllegalAddress"
  [[nodiscard]] virtual std::string error_text(int code) = 0;  // "an illegal memory access was encountered"

  // Where code that cannot throw reports failed calls. Set by make_device_on(), before the first call.
  Log log = {};
};

}  // namespace terrace::cuda
