#include <terrace/offload/move/tier_stack.h>

#include <utility>

namespace terrace::offload {

TierStack::TierStack(Device& device, std::uint64_t device_bytes, std::uint64_t host_bytes, std::span<std::byte> device_memory)
    : device_(device), device_memory_(device_memory) {
  disk_->host_memory = device.host_memory();
  if (device_bytes != 0 && device_memory.empty()) {
    device_bytes_ = device.memory().allocate(device_bytes);
    device_memory_ = {device_bytes_.data(), device_bytes_.bytes()};
  }
  if (host_bytes != 0) disk_->host_bytes = disk_->host_memory->allocate(host_bytes);
}

void TierStack::start(std::unique_ptr<ChunkStore> store, const Start& how) {
  const auto& host = disk_->host_bytes;
  disk_->store = std::move(store);
  if (disk_->store) {
    IoOptions io{.files = {}, .buffers = {}, .choice = how.io};
    io.files = disk_->store->descriptors();
    io.window_bytes = how.window_bytes * io.files.size();
    if (host.bytes() != 0) io.buffers.push_back({host.data(), host.bytes()});
    disk_->engine = how.make_io(io);
  }
  mover_.emplace(Mover::Parts{.device = &device_,
                              .device_base = device_memory_.data(),
                              .host_base = host.data(),
                              .store = disk_->store.get(),
                              .engine = disk_->engine.get(),
                              .lanes = &lanes_,
                              .trace = how.trace,
                              .deadline = how.deadline,
                              .held = disk_});
}

}  // namespace terrace::offload
