// What moves over the link between a host and its device, and what a launch costs: through the device's streams, as the engine
// does it.
//
// Owner:   the caller's device and buffers. Threads: one.
// Errors:  of the device; Error(Exit::corrupt) when what came back is not what was sent.
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
// "disk_to_device" beside "disk_to_host", in turns: a file of its own, read directly into the device's host memory.
void measure_disk(Session& session, Device& device, const std::filesystem::path& directory, std::uint64_t bytes);

}  // namespace terrace::bench
