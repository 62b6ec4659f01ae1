// How fast the paths of a store are, measured in its own files before anything lies in them.
//
// Threads: one. Errors: none; a path that cannot be measured counts as fast as the slowest one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace terrace {

// Bytes a second of each file, reading and writing alike; overwrites their first `bytes`. Paths are measured one by one.
std::vector<double> measure_paths(std::span<const int> files, std::uint64_t bytes);

}  // namespace terrace
