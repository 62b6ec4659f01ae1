#include <terrace/bench/disk/block_device.h>

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include <terrace/core/base/units.h>

namespace terrace::bench {
namespace {

namespace fs = std::filesystem;

std::optional<std::int64_t> number_in(const fs::path& file) {
  std::int64_t number = 0;
  return std::ifstream(file) >> number ? std::optional(number) : std::nullopt;
}

std::uint64_t kib_in(const fs::path& file) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(number_in(file).value_or(0), 0)) * kKiB;
}

}  // namespace

std::uint64_t BlockDevice::parts_of(std::uint64_t bytes) const {
  return most_request_bytes == 0 ? 0 : (bytes + most_request_bytes - 1) / most_request_bytes;
}

BlockDevice block_device_of(dev_t number, const fs::path& root) {
  std::error_code error;
  auto folder = fs::canonical(root / "sys/dev/block" / fmt::format("{}:{}", major(number), minor(number)), error);
  if (error) return {};
  if (fs::exists(folder / "partition", error)) folder = folder.parent_path();
  BlockDevice device{.name = folder.filename().string(),
                     .most_request_bytes = kib_in(folder / "queue/max_sectors_kb"),
                     .possible_request_bytes = kib_in(folder / "queue/max_hw_sectors_kb")};
  // An nvme namespace is below its controller, whose "device" is on the bus: the file is in one of them.
  for (const auto* const file : {"device/numa_node", "device/device/numa_node"})
    if (const auto node = number_in(folder / file); node && device.numa_node < 0) device.numa_node = static_cast<int>(*node);
  return device;
}

BlockDevice block_device_of(const fs::path& folder) {
  struct stat info {};
  return ::stat(folder.c_str(), &info) == 0 ? block_device_of(info.st_dev) : BlockDevice{};
}

std::string split_advice(const BlockDevice& device, std::uint64_t block_bytes) {
  if (device.parts_of(block_bytes) <= 1) return "";
  auto advice =
      fmt::format("a request of {} reaches {} as {} requests of at most {} (max_sectors_kb)", format_bytes(block_bytes),
                  device.name, device.parts_of(block_bytes), format_bytes(device.most_request_bytes));
  if (const auto possible = std::min(device.possible_request_bytes, block_bytes); possible > device.most_request_bytes)
    advice += fmt::format("; the device takes {}: echo {} > /sys/block/{}/queue/max_sectors_kb (as root)",
                          format_bytes(possible), possible / kKiB, device.name);
  else
    advice +=
        fmt::format("; the device takes no more: --block-size {}KiB with a queue {} times as deep gives it the same requests",
                    device.most_request_bytes / kKiB, device.parts_of(block_bytes));
  return advice;
}

}  // namespace terrace::bench
