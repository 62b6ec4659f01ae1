// A test that draws random matrices and prints its seed when it fails.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <terrace/core/math/dtype.h>
#include <terrace/tests/support/environment.h>

namespace terrace::test {

struct RandomMatrices : testing::Test {
  std::uint64_t seed = test_seed();
  std::mt19937_64 random{seed};
  testing::ScopedTrace trace{__FILE__, __LINE__, "TERRACE_TEST_SEED=" + std::to_string(seed)};

  std::vector<bf16> matrix(std::size_t elements) {
    std::vector<bf16> m(elements);
    for (auto& x : m) x = bf16(std::uniform_real_distribution<float>(-2, 2)(random));
    return m;
  }
};

}  // namespace terrace::test
