#include <terrace/bench/disk/sweep.h>

#include <algorithm>
#include <array>

namespace terrace::bench {
namespace {

constexpr std::array<std::uint64_t, 4> kBlockBytes{256 * kKiB, kMiB, 4 * kMiB, kSweepBlockBytes};
constexpr std::array<std::uint32_t, 4> kDepths{1, 4, 16, 64};
constexpr std::uint32_t kMostThreads = 4;
constexpr std::uint64_t kMostBufferBytes = 512 * kMiB;
constexpr std::uint64_t kLeastRounds = 2;  // a queue that is filled fewer times than this is mostly not full
constexpr double kAsFast = 0.98;           // of the fastest rate: a smaller difference is noise

}  // namespace

std::vector<DiskShape> sweep_shapes(const DiskShape& base, std::uint64_t file_bytes, int cores) {
  std::vector<DiskShape> shapes;
  const auto most_threads = std::min<std::uint32_t>(static_cast<std::uint32_t>(std::max(cores, 1)), kMostThreads);
  for (std::uint32_t threads = 1; threads <= most_threads; threads *= 2) {
    for (const auto block_bytes : kBlockBytes) {
      for (const auto depth : kDepths) {
        auto shape = base;
        shape.block_bytes = block_bytes;
        shape.queue_depth = depth;
        shape.threads = threads;
        if (shape.buffer_bytes() > kMostBufferBytes) continue;
        if (file_bytes / block_bytes < kLeastRounds * depth * threads) continue;
        shapes.push_back(shape);
      }
    }
  }
  if (shapes.empty()) shapes.push_back(base);
  return shapes;
}

const Swept& best_of(const std::vector<Swept>& swept) {
  const double fastest = std::ranges::max(swept, {}, &Swept::gb_per_s).gb_per_s;
  const Swept* best = nullptr;
  for (const auto& s : swept)
    if (s.gb_per_s >= kAsFast * fastest && (!best || s.cpu_s_per_gib < best->cpu_s_per_gib)) best = &s;
  return *best;
}

}  // namespace terrace::bench
