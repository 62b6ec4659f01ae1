// Measures the speed of the link between a host and its device, and the cost of a launch, through the device's streams, as the
// engine uses them.
//
// Owner:   the caller's device and buffers. Threads: one.
// Errors:  those of the device; Error(ErrorKind::corrupt) if other bytes come back than were sent.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <terrace/bench/disk/disk_file.h>
#include <terrace/bench/session.h>
#include <terrace/core/device/device.h>
#include <terrace/core/machine/pci.h>

namespace terrace::bench {

// Host memory to copy from and to; each direction uses half of it.
struct HostPlace {
  std::string memory;  // "pinned": from the device's host_memory(); "pageable": ordinary memory
  int numa_node = 0;
  std::span<std::byte> bytes;
};

// How many copies of this size are queued at once, so that not only their latency is measured.
std::uint64_t copies_of(std::uint64_t copy_bytes);
// Measures "upload", "download" and "both" at once, in turns, with copies of several sizes up to half of the memory. Returns
// the rate of the faster direction, in GB/s; 0 if stopped.
double measure_link(Session& session, Device& device, const HostPlace& place);
// Measures "device_copy": a copy within the device's memory.
void measure_device_copies(Session& session, Device& device, std::uint64_t copy_bytes);
// Measures "launch": one of many in a row; "launch_and_wait": until the host knows that it has ended.
void measure_launches(Session& session, Device& device);
// Measures "hand_off": kernel, event, host thread, copy, event.
void measure_hand_off(Session& session, Device& device);
// Measures copies beside the opposite direction, an update by the host, a product by the device and, if there is a file on a
// disk, reads of it; both rates are told. "upload_beside_update"
void measure_beside(Session& session, Device& device, std::uint64_t copy_bytes, const std::shared_ptr<const DiskFile>& disk);
// Measures "kernel_read" and "kernel_write": kernels that read and write pinned host memory directly; alone and at once.
void measure_zero_copy(Session& session, Device& device, std::uint64_t copy_bytes);
// Measures the copies of several GPUs at once, each with host memory beside it: "upload_to_all", and so on.
void measure_all_gpus(Session& session, const std::vector<Device*>& devices, std::uint64_t copy_bytes);
// The ends of the device's link, and the fastest that it was while copies ran: an idle link is slow.
machine::PciEnds link_while_copying(Device& device, std::uint64_t copy_bytes, const std::function<machine::PciEnds()>& read);
// Measures "disk_to_host", "disk_to_device" and the ways back, in turns, and the device's two ways at once. The file's blocks
// pass through the device's host memory.
void measure_disk(Session& session, Device& device, const std::shared_ptr<const DiskFile>& file);

}  // namespace terrace::bench
