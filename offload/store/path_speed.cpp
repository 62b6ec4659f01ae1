#include <terrace/offload/store/path_speed.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <terrace/core/base/trace.h>
#include <terrace/core/base/units.h>

namespace terrace::store {
namespace {

constexpr std::uint64_t kProbeBytes = 4 * kMiB;

// Transfers all blocks in one direction; 0 if one of them fails.
template <class Transfer>
double bytes_per_s(std::uint64_t bytes, Transfer transfer) {
  const auto begin = now_ns();
  for (std::uint64_t at = 0; at < bytes; at += kProbeBytes)
    if (transfer(static_cast<off_t>(at)) != static_cast<ssize_t>(kProbeBytes)) return 0;
  return static_cast<double>(bytes) / (static_cast<double>(std::max<std::int64_t>(1, now_ns() - begin)) * 1e-9);
}

}  // namespace

std::vector<double> measure_paths(std::span<const int> files, std::uint64_t bytes) {
  const std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(kPageBytes, kProbeBytes), &std::free);
  std::vector<double> speeds;
  if (!block) return std::vector<double>(files.size(), 1);
  std::memset(block.get(), 0x5a, kProbeBytes);
  const auto whole = bytes / kProbeBytes * kProbeBytes;
  for (const int file : files) {
    const auto write = bytes_per_s(whole, [&](off_t at) { return ::pwrite(file, block.get(), kProbeBytes, at); });
    const auto read = bytes_per_s(whole, [&](off_t at) { return ::pread(file, block.get(), kProbeBytes, at); });
    // A step reads about as much as it writes.
    speeds.push_back(write > 0 && read > 0 ? 2 / (1 / write + 1 / read) : 0);
  }
  double slowest = 0;
  for (const double speed : speeds)
    if (speed > 0) slowest = slowest == 0 ? speed : std::min(slowest, speed);
  for (double& speed : speeds)
    if (speed == 0) speed = std::max(slowest, 1.0);
  return speeds;
}

}  // namespace terrace::store
