#include <algorithm>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/cuda/cuda_error.h>
#include <terrace/core/cuda/memory.h>
#include <terrace/core/units.h>

namespace terrace {
namespace {

class RegisteredMemory final : public MemoryResource {
 public:
  RegisteredMemory(std::shared_ptr<CudaRuntime> runtime, int device_index, std::string on,
                   std::unique_ptr<MemoryResource> inner, std::size_t piece_bytes)
      : runtime_(std::move(runtime)),
        device_index_(device_index),
        on_(std::move(on)),
        inner_(std::move(inner)),
        piece_bytes_(piece_bytes) {}

  Slab allocate(std::size_t asked_bytes) override {
    Slab slab = inner_->allocate(asked_bytes);
    if (const int code = runtime_->set_device(device_index_)) throw CudaError(*runtime_, code, on_, "cudaSetDevice");
    const auto bytes = slab.bytes();
    for (std::size_t at = 0; at < bytes;) {
      const auto length = piece_at(slab.data() + at, bytes - at);
      if (const int code = runtime_->register_host(slab.data() + at, length)) {
        CudaError error(*runtime_, code, on_,
                        fmt::format("cudaHostRegister of {} ({} bytes, at {} of {})", format_bytes(length), length, at, bytes));
        unregister(slab.data(), at);
        throw error;
      }
      at += length;
    }
    return {this, slab.detach(), bytes};
  }

 private:
  void release(std::byte* data, std::size_t bytes) noexcept override {
    if (const int code = runtime_->set_device(device_index_)) warn_of_cuda(*runtime_, code, on_, "cudaSetDevice");
    unregister(data, bytes);
    release_to(*inner_, data, bytes);
  }

  void unregister(std::byte* data, std::size_t bytes) noexcept {
    for (std::size_t at = 0; at < bytes; at += piece_at(data + at, bytes - at)) {
      if (const int code = runtime_->unregister_host(data + at)) warn_of_cuda(*runtime_, code, on_, "cudaHostUnregister");
    }
  }

  [[nodiscard]] std::size_t piece_at(const std::byte* data, std::size_t bytes) const {
    return std::min<std::size_t>(bytes, piece_bytes_ - reinterpret_cast<std::uintptr_t>(data) % piece_bytes_);
  }

  const std::shared_ptr<CudaRuntime> runtime_;
  const int device_index_;
  const std::string on_;
  const std::unique_ptr<MemoryResource> inner_;
  const std::size_t piece_bytes_;
};

}  // namespace

std::unique_ptr<MemoryResource> make_registered_memory(std::shared_ptr<CudaRuntime> runtime, int device_index, std::string on,
                                                       std::unique_ptr<MemoryResource> inner, std::size_t piece_bytes) {
  return std::make_unique<RegisteredMemory>(std::move(runtime), device_index, std::move(on), std::move(inner), piece_bytes);
}

}  // namespace terrace
