#include <terrace/core/cuda/workspace.h>

#include <algorithm>

namespace terrace::cuda {

StreamWorkspaces::StreamWorkspaces(Device& device, std::size_t room_bytes) : device_(device), room_bytes_(room_bytes) {
  entries_.push_back(make());
}

StreamWorkspaces::Entry StreamWorkspaces::make() {
  constexpr auto faults = static_cast<std::size_t>(Fault::count);
  Entry entry{.data = device_.memory().allocate(kWorkspaceBytes),
              .faults = device_.host_memory()->allocate(faults * sizeof(FaultWord))};
  if (room_bytes_ > 0) entry.room = device_.memory().allocate(room_bytes_);
  std::fill_n(reinterpret_cast<FaultWord*>(entry.faults.data()), faults, FaultWord{0});
  return entry;
}

Workspace StreamWorkspaces::of(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  auto entry = std::ranges::find(entries_, &stream, &Entry::stream);
  if (entry == entries_.end()) entry = std::ranges::find(entries_, nullptr, &Entry::stream);
  if (entry == entries_.end()) entry = entries_.insert(entries_.end(), make());
  entry->stream = &stream;
  return {entry->data.data(), reinterpret_cast<FaultWord*>(entry->faults.data()), entry->room.data()};
}

}  // namespace terrace::cuda
