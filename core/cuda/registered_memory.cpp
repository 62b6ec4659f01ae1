#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/units.h>
#include <terrace/core/cuda/cuda_error.h>
#include <terrace/core/cuda/memory.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/machine/memlock.h>

namespace terrace::cuda {
namespace {

class RegisteredMemory final : public MemoryResource {
 public:
  RegisteredMemory(std::shared_ptr<CudaRuntime> runtime, int device_index, std::string on, ThreadPool& pool,
                   std::unique_ptr<MemoryResource> inner, const CudaPieces& pieces)
      : runtime_(std::move(runtime)),
        device_index_(device_index),
        on_(std::move(on)),
        pool_(pool),
        inner_(std::move(inner)),
        pieces_(pieces) {}

  Slab allocate(std::size_t asked_bytes) override {
    Slab slab = inner_->allocate(asked_bytes);
    const auto bytes = slab.bytes();
    auto pieces = pieces_of(slab.data(), bytes);
    register_all(pieces, bytes);
    const auto failed = std::ranges::find_if(pieces, [](const Piece& piece) { return piece.code != kCudaSuccess; });
    if (failed == pieces.end()) return {this, slab.detach(), bytes};
    for (const auto& piece : pieces)
      if (piece.registered) unregister(piece.data);
    if (failed->call == kSetDevice) throw CudaError(*runtime_, failed->code, on_, failed->call);
    throw CudaError(*runtime_, failed->code, on_,
                    fmt::format("{} of {} ({} bytes, at {} of {})", failed->call, format_bytes(failed->bytes), failed->bytes,
                                failed->data - slab.data(), bytes),
                    machine::memlock_mend());
  }

 private:
  struct Piece {
    std::byte* data;
    std::size_t bytes;
    bool registered = false;
    int code = kCudaSuccess;
    std::string_view call = {};  // the failed call
  };
  static constexpr std::string_view kSetDevice = "cudaSetDevice";

  void release(std::byte* data, std::size_t bytes) noexcept override {
    if (const int code = runtime_->set_device(device_index_)) warn_of_cuda(*runtime_, code, on_, kSetDevice);
    for (std::size_t at = 0; at < bytes; at += piece_at(data + at, bytes - at)) unregister(data + at);
    release_to(*inner_, data, bytes);
  }
  void unregister(std::byte* data) noexcept {
    if (const int code = runtime_->unregister_host(data)) warn_of_cuda(*runtime_, code, on_, "cudaHostUnregister");
  }

  [[nodiscard]] std::vector<Piece> pieces_of(std::byte* data, std::size_t bytes) const {
    std::vector<Piece> pieces;
    for (std::size_t at = 0; at < bytes; at += pieces.back().bytes)
      pieces.push_back({data + at, piece_at(data + at, bytes - at)});
    return pieces;
  }
  [[nodiscard]] std::size_t piece_at(const std::byte* data, std::size_t bytes) const {
    return std::min<std::size_t>(bytes,
                                 pieces_.register_bytes - reinterpret_cast<std::uintptr_t>(data) % pieces_.register_bytes);
  }

  // Runs on all threads, because pinning visits every page. Once a piece has failed, no further one is begun.
  void register_all(std::vector<Piece>& pieces, std::size_t all_bytes) {
    std::atomic<bool> failed{false};
    std::mutex mutex;  // protects the two counts
    std::size_t done_bytes = 0, told_bytes = 0;
    pool_.parallel_for(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t i) {
      auto& piece = pieces[static_cast<std::size_t>(i)];
      if (failed) return;
      piece.call = kSetDevice;
      piece.code = runtime_->set_device(device_index_);
      if (piece.code == kCudaSuccess) {
        piece.call = "cudaHostRegister";
        piece.code = runtime_->register_host(piece.data, piece.bytes);
        piece.registered = piece.code == kCudaSuccess;
      }
      if (piece.code != kCudaSuccess) failed = true;
      const std::lock_guard lock(mutex);
      done_bytes += piece.bytes;
      if (done_bytes - told_bytes < pieces_.progress_bytes || failed) return;
      told_bytes = done_bytes;
      runtime_->log.note(
          fmt::format("{}: {} of {} of host memory are registered", on_, format_bytes(done_bytes), format_bytes(all_bytes)));
    });
  }

  const std::shared_ptr<CudaRuntime> runtime_;
  const int device_index_;
  const std::string on_;
  ThreadPool& pool_;
  const std::unique_ptr<MemoryResource> inner_;
  const CudaPieces pieces_;
};

}  // namespace

std::unique_ptr<MemoryResource> make_registered_memory(std::shared_ptr<CudaRuntime> runtime, int device_index, std::string on,
                                                       ThreadPool& pool, std::unique_ptr<MemoryResource> inner,
                                                       const CudaPieces& pieces) {
  return std::make_unique<RegisteredMemory>(std::move(runtime), device_index, std::move(on), pool, std::move(inner), pieces);
}

}  // namespace terrace::cuda
