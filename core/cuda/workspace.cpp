#include <terrace/core/cuda/workspace.h>

#include <algorithm>

#include <terrace/core/cuda/stream.h>

namespace terrace::cuda {

StreamWorkspaces::StreamWorkspaces(Device& device, std::size_t room_bytes) : device_(device), room_bytes_(room_bytes) {
  entries_.push_back(make());
}

StreamWorkspaces::Entry StreamWorkspaces::make() {
  constexpr auto faults = static_cast<std::size_t>(Fault::count);
  Entry entry{.stream = {},
              .data = device_.memory().allocate(kWorkspaceBytes),
              .faults = device_.host_memory()->allocate(faults * sizeof(FaultWord))};
  if (room_bytes_ > 0) entry.room = device_.memory().allocate(room_bytes_);
  std::fill_n(reinterpret_cast<FaultWord*>(entry.faults.data()), faults, FaultWord{0});
  return entry;
}

StreamWorkspaces::Entry& StreamWorkspaces::entry_of(const CudaStream& stream) {
  const auto& lifetime = stream.lifetime();
  auto entry = std::ranges::find_if(entries_, [&](const Entry& e) { return e.stream.lock() == lifetime; });
  if (entry == entries_.end()) entry = std::ranges::find_if(entries_, [](const Entry& e) { return e.stream.expired(); });
  if (entry == entries_.end()) entry = entries_.insert(entries_.end(), make());
  entry->stream = lifetime;
  return *entry;
}

Workspace StreamWorkspaces::of(const CudaStream& stream) {
  const std::lock_guard lock(mutex_);
  const auto& entry = entry_of(stream);
  return {entry.data.data(), reinterpret_cast<FaultWord*>(entry.faults.data()), entry.room.data()};
}

void StreamWorkspaces::make(std::span<Stream* const> streams) {
  const std::lock_guard lock(mutex_);
  for (auto* const stream : streams) entry_of(cuda_stream(*stream));
  std::erase_if(entries_, [](const Entry& e) { return e.stream.expired(); });
}

}  // namespace terrace::cuda
