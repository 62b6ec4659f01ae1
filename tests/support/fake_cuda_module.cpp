// A terrace_cuda13.so, and terrace_cuda12.so, on the fake CUDA runtime, so that everything from a command line to a copy runs
// where there is no GPU. Misuse of CUDA ends the process.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include <terrace/core/cuda/device.h>
#include <terrace/core/math.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/parallel/comm/nccl/nccl_transport.h>
#include <terrace/tests/support/fake_cuda.h>
#include <terrace/tests/support/fake_nccl.h>
#include <terrace/tests/support/made_up_products.h>

namespace {

// Whose runtime a device stands on, for the communicator between devices.
std::mutex devices_mutex;
std::map<const terrace::Device*, std::shared_ptr<terrace::test::FakeCuda>> runtimes;

void misuse(const std::string& text) {
  std::fprintf(stderr, "misuse of CUDA: %s\n", text.c_str());
  std::abort();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) terrace::Device* terrace_cuda_device(terrace::ThreadPool* pool,
                                                                                       const terrace::CudaOptions* options) {
  using namespace terrace;
  const char* const gpus = std::getenv("TERRACE_FAKE_GPUS");  // as the driver shows
  auto fake = std::make_shared<test::FakeCuda>(test::FakeCuda::Options{
      .devices = gpus ? std::atoi(gpus) : 1, .memory_bytes = 3 * kGiB, .pageable_copies = true, .report = misuse});
  auto device = make_device_on(fake, *pool, *options, [given = *options](CudaRuntime&, Device& d) -> std::unique_ptr<Math> {
    const char* const version = std::getenv("TERRACE_FAKE_CUBLAS");
    if (!version) return make_cpu_math(d.pool());
    return std::make_unique<test::MadeUpProducts>(make_cpu_math(d.pool()), std::strtoull(version, nullptr, 10),
                                                  cuda::KnownAlgorithms(given.algorithms, given.machine_algorithms));
  });
  const std::lock_guard lock(devices_mutex);
  runtimes[device.get()] = std::move(fake);
  return device.release();
}

// Between the devices of one process: NCCL's transport over a made-up NCCL, whose sums are the host's.
extern "C" __attribute__((visibility("default"))) terrace::Transport* terrace_nccl_transport(
    terrace::Device* device, std::shared_ptr<terrace::Transport>* host, std::shared_ptr<terrace::Transport>* letters) {
  using namespace terrace;
  const std::lock_guard lock(devices_mutex);
  const auto& runtime = runtimes.at(device);
  const char* const loading = std::getenv("TERRACE_FAKE_LOADING");  // when the driver was first called
  if (!loading || std::string_view(loading) != "EAGER")
    misuse("several GPUs, and kernels are loaded when they are first launched");
  auto nccl = std::make_shared<test::FakeNccl>(
      runtime,
      test::FakeNccl::Options{.is_device_memory = [runtime](const void* data) { return runtime->pointer_is_of_device(data); },
                              .report = misuse});
  return std::make_unique<NcclTransport>(*host, *letters,
                                         NcclParts{.device = device,
                                                   .device_index = cuda_index(*device),
                                                   .library = std::move(nccl),
                                                   .fold = test::host_fold(runtime)})
      .release();
}

// Its updates are host work of the stream, as the math is.
extern "C" __attribute__((visibility("default"))) terrace::Optimizer* terrace_cuda_optimizer(
    const char* name, const terrace::OptimizerSettings* settings) {
  return terrace::make_optimizer(name, *settings).release();
}
