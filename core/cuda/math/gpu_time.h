// Measures how long the GPU works on what a function issues, by events around it.
//
// Owner:   nothing. Threads: the stream's issuing thread; waits until it has ended. Errors: Error that names the call.
#pragma once

#include <functional>

namespace terrace::cuda {

double time_on_gpu_ns(void* stream, const std::function<void()>& issue);

}  // namespace terrace::cuda
