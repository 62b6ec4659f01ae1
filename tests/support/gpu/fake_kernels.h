// Kernels that the fake CUDA runtime can launch.
#pragma once

#include <cstddef>

#include <terrace/core/cuda/runtime.h>
#include <terrace/tests/support/gpu/fake_cuda.h>

namespace terrace::test {

struct AddArguments {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  int value = 0;
};
inline void add_kernel(const cuda::CudaLaunch& launch) {
  const auto& a = *static_cast<const AddArguments*>(launch.arguments);
  for (std::size_t i = 0; i < a.bytes; ++i) a.data[i] = static_cast<std::byte>(std::to_integer<int>(a.data[i]) + a.value);
}
inline const void* kernel(FakeKernel function) { return reinterpret_cast<const void*>(function); }

}  // namespace terrace::test
