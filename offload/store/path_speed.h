// Measures the speed of a store's paths, in the store's own files before they hold data.
//
// Threads: one. Errors: none; a path that cannot be measured counts as fast as the slowest one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace terrace::store {

// Bytes per second of each file, half reading and half writing; overwrites the first `bytes` of each. Paths are measured in
// turn.
std::vector<double> measure_paths(std::span<const int> files, std::uint64_t bytes);

}  // namespace terrace::store
