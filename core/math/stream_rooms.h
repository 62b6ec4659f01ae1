// Math whose operations work in memory of their stream, which it allocates when a stream first computes.
//
// Owner, threads: as Math. Errors: those of the device's memory.
#pragma once

#include <span>

#include <terrace/core/device/device.h>

namespace terrace::math {

class StreamRooms {
 public:
  virtual ~StreamRooms() = default;
  // Allocates the memory of these streams now, and frees that of streams that are gone. Requires an idle device: later, CUDA
  // might first wait for a kernel that waits for another rank.
  virtual void make_rooms(std::span<Stream* const> streams) = 0;
};

}  // namespace terrace::math
