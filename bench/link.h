// The speed of the link between a host and its device, and the cost of a launch: through the device's streams, like the engine.
//
// Owner:   the caller's device and buffers. Threads: one.
// Errors:  those of the device; Error(Exit::corrupt) if other bytes come back than were sent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <terrace/bench/session.h>
#include <terrace/core/device.h>

namespace terrace::bench {

// Host memory to copy from and to: half of it each way.
struct HostPlace {
  std::string memory;  // "pinned": the device's; "pageable": not known to it
  int numa_node = 0;
  std::span<std::byte> bytes;
};

// "upload", "download" and "both" at once, in turns, with copies of several sizes up to half of the place.
void measure_link(Session& session, Device& device, const HostPlace& place);
// "device_copy" within the device's memory.
void measure_device_copies(Session& session, Device& device, std::uint64_t copy_bytes);
// "launch": one of many in a row; "launch_and_wait": until the host knows of its end.
void measure_launches(Session& session, Device& device);
// "disk_to_device" and "disk_to_host", in turns: a new file, read directly into the device's host memory.
void measure_disk(Session& session, Device& device, const std::filesystem::path& directory, std::uint64_t bytes);

}  // namespace terrace::bench
