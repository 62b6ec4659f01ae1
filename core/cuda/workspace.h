// Memory that an operation of the CUDA math works in: partial sums, indices, and what cuBLASLt needs.
//
// Owner:   the math owns one workspace for each stream that computes; a stream's operations use it one after the other. The
//          first is allocated at construction, so that a budget which cannot hold it is refused early. When a stream has been
//          destroyed, another one takes over its workspace (the old one had finished by then), or make() frees it.
// Threads: of() from any thread.
// Errors:  those of the device's memory.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <terrace/core/cuda/kernels/fault.h>
#include <terrace/core/device/device.h>

namespace terrace::cuda {

class CudaStream;

// The parts of two-stage sums and the choice of matrix products depend on this size, so it affects the bits.
inline constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

// The faults that a kernel may report (kernels/fault.h).
enum class Fault : int { token, target, count };

struct Workspace {
  std::byte* data = nullptr;    // kWorkspaceBytes of device memory
  FaultWord* faults = nullptr;  // one per Fault, where both host and kernels reach it
  std::byte* room = nullptr;    // additional memory for a library; null if it needs none
  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data);
  }
  [[nodiscard]] FaultWord* fault(Fault f) const { return faults + static_cast<int>(f); }
};

class StreamWorkspaces {
 public:
  explicit StreamWorkspaces(Device& device, std::size_t room_bytes = 0);
  Workspace of(const CudaStream& stream);
  // math::StreamRooms::make_rooms()
  void make(std::span<Stream* const> streams);

 private:
  struct Entry {
    std::weak_ptr<const void> stream;  // its lifetime; expired: nobody uses the workspace
    Slab data, faults;
    Slab room = {};  // empty if not needed
  };
  Entry make();
  Entry& entry_of(const CudaStream& stream);

  Device& device_;
  const std::size_t room_bytes_;
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace terrace::cuda
