// Compares merged adapters with sums computed one number after the other.
#include <array>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/weights/low_rank_sum.h>

namespace terrace::lm {
namespace {

template <class T>
class LowRankSum : public testing::Test {};
using Numbers = testing::Types<float, double, bf16>;
TYPED_TEST_SUITE(LowRankSum, Numbers);

TYPED_TEST(LowRankSum, HasTheBitsOfOneSumAfterTheOther) {
  using T = TypeParam;
  const auto wide = [](T x) {
    if constexpr (std::is_same_v<T, bf16>)
      return static_cast<double>(static_cast<float>(x));
    else
      return static_cast<double>(x);
  };
  constexpr unsigned kSeed = 24;
  std::mt19937 random(kSeed);
  std::normal_distribution<double> normal;
  for (const auto& [rows, columns, rank] : {std::array<std::int64_t, 3>{7, 5, 3}, {40, 1031, 16}, {300, 64, 1}, {3, 9000, 9}}) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << rows << " x " << columns << ", rank " << rank);
    std::vector<double> left(static_cast<std::size_t>(rows * rank)), right(static_cast<std::size_t>(rank * columns));
    for (auto* const numbers : {&left, &right})
      for (auto& x : *numbers) x = normal(random);
    std::vector<T> matrix(static_cast<std::size_t>(rows * columns));
    for (auto& x : matrix) x = T(static_cast<float>(normal(random)));
    constexpr double kScale = 0.375;
    std::vector<T> expected;
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      double sum = 0;
      for (std::int64_t k = 0; k < rank; ++k)
        sum +=
            left[static_cast<std::size_t>(i / columns * rank + k)] * right[static_cast<std::size_t>(k * columns + i % columns)];
      const double merged = wide(matrix[static_cast<std::size_t>(i)]) + kScale * sum;
      if constexpr (std::is_same_v<T, bf16>)
        expected.emplace_back(static_cast<float>(merged));
      else
        expected.push_back(static_cast<T>(merged));
    }
    for (const int threads : {1, 3})
      for (const std::int64_t range : {rows * columns, std::int64_t{1001}}) {
        ThreadPool pool(threads);
        auto merged = matrix;
        for (std::int64_t first = 0; first < rows * columns; first += range) {
          const auto count = std::min(range, rows * columns - first);
          add_low_rank(pool, {reinterpret_cast<std::byte*>(merged.data() + first), dtype_of<T>::value, {count}}, first,
                       {.left = left, .right = right, .rank = rank, .columns = columns, .scale = kScale});
        }
        EXPECT_EQ(0, std::memcmp(expected.data(), merged.data(), merged.size() * sizeof(T)))
            << threads << " threads, " << range;
      }
  }
}

TEST(LowRankSumMatrices, AreTransposed) {
  EXPECT_EQ((std::vector<double>{1, 4, 2, 5, 3, 6}), transposed(std::vector<double>{1, 2, 3, 4, 5, 6}, 3));
}

}  // namespace
}  // namespace terrace::lm
