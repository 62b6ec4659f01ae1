// How many descriptors this process has open, the one that counts them included: for tests that nothing is leaked.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace terrace::test {

inline std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

}  // namespace terrace::test
