// The number of descriptors that this process has open, including the one used for counting: for tests of leaks.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace terrace::test {

inline std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

}  // namespace terrace::test
