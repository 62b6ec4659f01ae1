// Measures the speed of the link between a host and its device, and the cost of a launch, through the device's streams, as the
// engine uses them.
//
// Owner:   the caller's device and buffers. Threads: one.
// Errors:  those of the device; Error(ErrorKind::corrupt) if other bytes come back than were sent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <terrace/bench/session.h>
#include <terrace/core/device/device.h>

namespace terrace::bench {

// Host memory to copy from and to; each direction uses half of it.
struct HostPlace {
  std::string memory;  // "pinned": from the device's host_memory(); "pageable": ordinary memory
  int numa_node = 0;
  std::span<std::byte> bytes;
};

// Measures "upload", "download" and "both" at once, in turns, with copies of several sizes up to half of the memory.
void measure_link(Session& session, Device& device, const HostPlace& place);
// Measures "device_copy": a copy within the device's memory.
void measure_device_copies(Session& session, Device& device, std::uint64_t copy_bytes);
// Measures "launch": one of many in a row; "launch_and_wait": until the host knows that it has ended.
void measure_launches(Session& session, Device& device);
// Measures "disk_to_device" and "disk_to_host", in turns: a new file is read directly into the device's host memory.
void measure_disk(Session& session, Device& device, const std::filesystem::path& directory, std::uint64_t bytes);

}  // namespace terrace::bench
