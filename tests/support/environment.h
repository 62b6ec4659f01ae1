// What the environment says to a test: how long a form to run, from which seed. tests/long.sh sets it.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace terrace::test {

inline std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// Of what a test draws. The same each run, so that a failure is there again; tests/long.sh gives others.
inline std::uint64_t test_seed() { return number_from_environment("TERRACE_TEST_SEED", 1); }

}  // namespace terrace::test
