// Environment variables for tests: how long a form to run, and with which seed. tests/long.sh sets them.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace terrace::test {

inline std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// The seed of a test's random numbers. It is the same in each run, so that failures can be repeated; tests/long.sh sets others.
inline std::uint64_t test_seed() { return number_from_environment("TERRACE_TEST_SEED", 1); }

}  // namespace terrace::test
