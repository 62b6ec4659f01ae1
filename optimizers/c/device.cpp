#include <terrace/optimizers/c/device.h>

#include <terrace/core/device/cuda.h>
#include <terrace/optimizers/c/guard.h>

namespace terrace::c {
namespace {

std::unique_ptr<Device> device_of(const terrace_chunks_options& options, ThreadPool& pool) {
  if (options.cuda == 0) return make_cpu_device(pool);
  CudaOptions cuda;
  cuda.index = options.cuda_ordinal;
  return make_cuda_device(pool, cuda);
}

int threads_of(const terrace_chunks_options& options) {
  if (options.threads < 0)
    throw Error("threads is " + std::to_string(options.threads) + "\n  give a count, or 0 for all cores", ErrorKind::refused);
  return options.threads;
}

}  // namespace

HandleDevice::HandleDevice(const terrace_chunks_options& options)
    : pool_(threads_of(options)), device_(device_of(options, pool_)) {}

Stream* HandleDevice::stream(void* native) {
  if (!native) return nullptr;
  const std::lock_guard lock(mutex_);
  auto& stream = streams_[native];
  if (!stream) stream = device_->adopt_stream(native, "caller");
  return stream.get();
}

OffloadOptions offload_options(const terrace_chunks_options& options, Device& device) {
  OffloadOptions result;
  result.device_bytes = options.device_bytes;
  result.host_bytes = options.host_bytes;
  result.nvme_bytes = options.nvme_bytes;
  for (std::size_t i = 0; i < options.nvme_path_count; ++i)
    result.nvme_paths.emplace_back(&there((&there(options.nvme_paths, "nvme_paths"))[i], "a path in nvme_paths"));
  if (options.store) result.store = options.store;
  result.device = &device;
  return result;
}

}  // namespace terrace::c
