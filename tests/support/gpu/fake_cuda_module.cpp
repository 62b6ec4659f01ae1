// A terrace_cuda13.so, and terrace_cuda12.so, that uses the fake CUDA runtime, so that everything from a command line to a copy
// runs without a GPU. Misuse of CUDA ends the process.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

#include <terrace/core/cuda/device.h>
#include <terrace/core/math/math.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/parallel/comm/nccl/nccl_transport.h>
#include <terrace/tests/support/gpu/fake_cuda.h>
#include <terrace/tests/support/gpu/fake_nccl.h>
#include <terrace/tests/support/gpu/launched_math.h>
#include <terrace/tests/support/gpu/launched_updates.h>
#include <terrace/tests/support/gpu/made_up_products.h>

namespace {

// The runtime of each device, for the communicator between devices.
std::mutex devices_mutex;
std::map<const terrace::Device*, std::shared_ptr<terrace::test::FakeCuda>> runtimes;
// The first runtime of each GPU: several devices of a process may use one GPU.
std::map<int, std::shared_ptr<terrace::test::FakeCuda>> first_runtimes;

void misuse(const std::string& text) {
  std::fprintf(stderr, "misuse of CUDA: %s\n", text.c_str());
  std::abort();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) terrace::Device* terrace_cuda_device(terrace::ThreadPool* pool,
                                                                                       const terrace::CudaOptions* options) {
  using namespace terrace;
  const char* const gpus = std::getenv("TERRACE_FAKE_GPUS");  // the same number that the driver reports
  const std::lock_guard lock(devices_mutex);
  auto& first = first_runtimes[options->index];
  auto fake = std::make_shared<test::FakeCuda>(test::FakeCuda::Options{.devices = gpus ? std::atoi(gpus) : 1,
                                                                       .multiprocessors = 132,
                                                                       .memory_bytes = 3 * kGiB,
                                                                       .pageable_copies = true,
                                                                       .report = misuse,
                                                                       .same_gpu = first});
  if (!first) first = fake;
  auto device = cuda::make_device_on(fake, *pool, *options, [&](cuda::CudaRuntime&, Device& d) -> std::unique_ptr<Math> {
    auto math = make_cpu_math(d.pool());
    if (const char* const version = std::getenv("TERRACE_FAKE_CUBLAS"))
      math = std::make_unique<test::MadeUpProducts>(std::move(math), std::strtoull(version, nullptr, 10),
                                                    cuda::KnownAlgorithms(options->algorithms, options->machine_algorithms));
    // Measuring a machine profile uses products of 8,192 rows, which take a processor minutes; their results are not used, so
    // they are left out.
    return std::make_unique<test::LaunchedMath>(std::move(math), fake, 2e9);
  });
  runtimes[device.get()] = std::move(fake);
  return device.release();
}

// Connects the devices of one process: NCCL's transport with a fake NCCL, whose sums are computed on the host.
extern "C" __attribute__((visibility("default"))) terrace::comm::Transport* terrace_nccl_transport(
    terrace::Device* device, std::shared_ptr<terrace::comm::Transport>* host,
    std::shared_ptr<terrace::comm::Transport>* letters) {
  using namespace terrace;
  const std::lock_guard lock(devices_mutex);
  const auto& runtime = runtimes.at(device);
  const char* const loading = std::getenv("TERRACE_FAKE_LOADING");  // its value at the first call of the driver
  if (!loading || std::string_view(loading) != "EAGER")
    misuse("several GPUs, and kernels are loaded when they are first launched");
  auto nccl = std::make_shared<test::FakeNccl>(
      runtime,
      test::FakeNccl::Options{.is_device_memory = [runtime](const void* data) { return runtime->pointer_is_of_device(data); },
                              .report = misuse});
  return std::make_unique<comm::NcclTransport>(*host, *letters,
                                               comm::NcclParts{.device = device,
                                                               .device_index = cuda::cuda_index(*device),
                                                               .library = std::move(nccl),
                                                               .fold = test::host_fold(runtime),
                                                               .multiprocessors = cuda::cuda_multiprocessors(*device)})
      .release();
}

// Its updates are operations of the stream, as the math's are.
extern "C" __attribute__((visibility("default"))) terrace::Optimizer* terrace_cuda_optimizer(
    const char* name, const terrace::OptimizerSettings* settings) {
  using namespace terrace;
  return test::make_launched_optimizer(name, *settings,
                                       [](cuda::CudaStreamHandle stream) {
                                         const std::lock_guard lock(devices_mutex);
                                         for (const auto& [device, fake] : runtimes)
                                           if (fake->is_stream(stream)) return fake;
                                         throw std::logic_error("a stream of no device");
                                       })
      .release();
}
