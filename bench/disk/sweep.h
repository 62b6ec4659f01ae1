// Which shapes of a disk job a sweep tries, and which one it recommends.
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/bench/disk/disk_job.h>

namespace terrace::bench {

inline constexpr std::uint64_t kSweepBlockBytes = 16 * kMiB;  // the largest; the file is a multiple of it

// Combines block sizes, depths and threads up to the number of cores. Leaves out shapes that take too much memory, or whose
// queue the file is too small to keep full. Engine and sync are those of `base`; if no shape is left, returns `base` itself.
std::vector<DiskShape> sweep_shapes(const DiskShape& base, std::uint64_t file_bytes, int cores);

struct Swept {
  DiskShape shape;
  double gb_per_s = 0, cpu_s_per_gib = 0;
};
// Of the shapes that are as fast as the fastest, up to noise, returns the one with the least CPU time. `swept` is not empty.
const Swept& best_of(const std::vector<Swept>& swept);

}  // namespace terrace::bench
