// The interface through which streams tell a profiler what they do. The module has one for NVTX (nvtx_profiler.cpp); tests have
// their own.
//
// Owner:   the CudaRuntime. Threads: any; a range belongs to the thread that began it, which ends it.
// Errors:  none: a profiler deals with its own failures.
#pragma once

#include <string>

#include <terrace/core/cuda/runtime.h>

namespace terrace::cuda {

class CudaProfiler {
 public:
  virtual ~CudaProfiler() = default;
  virtual void name_stream(CudaStreamHandle stream, const std::string& name) = 0;
  // Everything that the calling thread issues between the two calls belongs to the name.
  virtual void begin_range(const std::string& name) = 0;
  virtual void end_range() = 0;
};

}  // namespace terrace::cuda
