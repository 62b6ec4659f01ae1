// Which shapes of a disk job a sweep tries, and which one it recommends.
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/bench/disk_job.h>

namespace terrace::bench {

inline constexpr std::uint64_t kSweepBlockBytes = 16 * kMiB;  // the largest; the file is a multiple of it

// Block sizes, depths and threads up to the cores; without those that take too much memory, or whose queue the file could not
// keep full. Engine and sync are the base's; it is what remains when nothing else does.
std::vector<DiskShape> sweep_shapes(const DiskShape& base, std::uint64_t file_bytes, int cores);

struct Swept {
  DiskShape shape;
  double gb_per_s = 0, cpu_s_per_gib = 0;
};
// The one of least CPU time among those that are as fast as the fastest, but for noise. `swept` is not empty.
const Swept& best_of(const std::vector<Swept>& swept);

}  // namespace terrace::bench
