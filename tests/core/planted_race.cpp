// Not a test itself: orders work on two streams of a fake GPU and on the host correctly, or leaves out one wait, which
// ThreadSanitizer must report.    planted_race kernel_after_copy|host_after_copy|copy_after_host|nothing
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <vector>

#include <terrace/tests/support/gpu/fake_cuda.h>
#include <terrace/tests/support/gpu/fake_kernels.h>

int main(int count, char** words) {
  using namespace terrace;
  using namespace terrace::test;
  const std::string_view planted = count > 1 ? words[1] : "nothing";
  constexpr std::size_t kBytes = 4096;
  FakeCuda fake;
  std::vector<std::byte> host(kBytes, std::byte{1});
  cuda::CudaStreamHandle upload = nullptr, compute = nullptr;
  cuda::CudaEventHandle event = nullptr;
  void* there = nullptr;
  int failed = fake.set_device(0) + fake.create_stream(&upload) + fake.create_stream(&compute) + fake.create_event(&event) +
               fake.allocate(&there, kBytes) + fake.register_host(host.data(), kBytes);

  failed += fake.copy_async(there, host.data(), kBytes, upload) + fake.record_event(event, upload);
  if (planted == "copy_after_host") host[7] = std::byte{2};  // the copy may not have read it yet
  if (planted != "kernel_after_copy") failed += fake.synchronize_event(event);
  const AddArguments arguments{static_cast<std::byte*>(there), kBytes, 1};
  failed += fake.launch({.kernel = kernel(add_kernel), .arguments = &arguments, .argument_bytes = sizeof arguments}, compute);
  failed += fake.copy_async(host.data(), there, kBytes, compute) + fake.record_event(event, compute);
  if (planted != "host_after_copy") failed += fake.synchronize_event(event);
  const auto seen = host[kBytes - 1];
  failed += fake.synchronize_stream(upload) + fake.synchronize_stream(compute);
  std::printf("the host saw %d\n", std::to_integer<int>(seen));
  failed += fake.destroy_event(event) + fake.destroy_stream(upload) + fake.destroy_stream(compute) + fake.free(there) +
            fake.unregister_host(host.data());
  return failed;
}
