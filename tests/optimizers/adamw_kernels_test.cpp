// Every kernel table gives the bits of the written specification, on ordinary and on hostile numbers.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <terrace/core/dtype.h>
#include <terrace/optimizers/adamw_kernels.h>

namespace terrace::adamw {
namespace {

// docs/optimizers.md, one element, one operation a line; volatile keeps each one rounded on its own.
template <class A>
void specified(A& weight, A g, A& m, A& v, const Factors<A>& f, bool first) {
  const volatile A scaled = g * f.gradient_scale;
  const volatile A decayed = weight * f.decay;
  const volatile A m_old = first ? A{0} : m, v_old = first ? A{0} : v;
  const volatile A difference = scaled - m_old;
  const volatile A towards = f.one_minus_beta1 * difference;
  m = m_old + towards;
  const volatile A kept = f.beta2 * v_old;
  const volatile A part = f.one_minus_beta2 * scaled;
  const volatile A square = part * scaled;
  v = kept + square;
  const volatile A root = std::sqrt(v);
  const volatile A corrected = root * f.inverse_root;
  const volatile A denominator = corrected + f.eps;
  const volatile A numerator = f.step_size * m;
  const volatile A change = numerator / denominator;
  weight = decayed - change;
}

template <class A>
std::vector<A> hostile_numbers() {
  using L = std::numeric_limits<A>;
  std::vector<A> numbers{A{0},
                         L::denorm_min(),
                         L::denorm_min() * 3,
                         L::min() / 2,
                         L::min(),
                         L::epsilon(),
                         A{1} - L::epsilon(),
                         A{1},
                         A{3},
                         L::max() / 2,
                         L::max(),
                         L::infinity(),
                         L::quiet_NaN()};
  for (std::size_t i = 0, n = numbers.size(); i < n; ++i) numbers.push_back(-numbers[i]);
  return numbers;
}

// A NaN's sign and payload are not promised: they depend on which operand of a sum the compiler loads first.
template <class A>
bool same(A a, A b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}
template <>
bool same(std::uint16_t a, std::uint16_t b) {
  const auto nan = [](std::uint16_t x) { return (x & 0x7fffU) > 0x7f80U; };
  return a == b || (nan(a) && nan(b));
}

template <class W, class G>
void expect_specified(void (*kernel)(const Elements<W, G>&, const Factors<W>&), const char* name, const std::vector<W>& weight,
                      const std::vector<G>& gradient, const std::vector<W>& m, const std::vector<W>& v,
                      const Factors<W>& factors, bool first, bool copy) {
  auto w1 = weight, m1 = m, v1 = v;
  std::vector<std::uint16_t> compute(weight.size());
  kernel({.weight = w1.data(),
          .compute = copy ? compute.data() : nullptr,
          .gradient = gradient.data(),
          .first_moment = m1.data(),
          .second_moment = v1.data(),
          .count = static_cast<std::int64_t>(weight.size()),
          .first = first},
         factors);
  for (std::size_t i = 0; i < weight.size(); ++i) {
    W g, w2 = weight[i], m2 = m[i], v2 = v[i];
    if constexpr (std::is_same_v<G, std::uint16_t>) {
      g = std::bit_cast<float>(static_cast<std::uint32_t>(gradient[i]) << 16);
    } else {
      g = gradient[i];
    }
    specified(w2, g, m2, v2, factors, first);
    const auto expected_copy = copy ? bf16(static_cast<float>(w2)).bits : std::uint16_t{0};
    ASSERT_TRUE(same(w1[i], w2) && same(m1[i], m2) && same(v1[i], v2) && same(compute[i], expected_copy))
        << name << ", element " << i << " of " << weight.size() << ", first " << first << ", copy " << copy << ": weight "
        << weight[i] << ", gradient " << g << ", moments " << m[i] << ", " << v[i] << " became " << w1[i] << ", " << m1[i]
        << ", " << v1[i] << ", copy " << compute[i] << " instead of " << w2 << ", " << m2 << ", " << v2 << ", "
        << expected_copy;
  }
}

template <class A>
Factors<A> ordinary_factors(A gradient_scale) {
  return {.gradient_scale = gradient_scale,
          .decay = A(1.0 - 3e-5),
          .one_minus_beta1 = A(0.1),
          .beta2 = A(0.95),
          .one_minus_beta2 = A(0.05),
          .inverse_root = A(1.0 / std::sqrt(0.0975)),
          .eps = A(1e-8),
          .step_size = A(3e-4 / 0.19)};
}

template <class W, class G>
G gradient_of(W x) {
  if constexpr (std::is_same_v<G, std::uint16_t>) {
    return bf16(x).bits;
  } else {
    return x;
  }
}

template <class W, class G>
void expect_all_specified(void (*kernel)(const Elements<W, G>&, const Factors<W>&), const char* name) {
  // Every hostile number in every place, against every other.
  const auto hostile = hostile_numbers<W>();
  std::vector<W> weight, m, v;
  std::vector<G> gradient;
  for (const W g : hostile) {
    for (const W a : hostile) {
      for (const W b : hostile) {
        gradient.push_back(gradient_of<W, G>(g));
        weight.push_back(b);
        m.push_back(a);
        v.push_back(b);
      }
    }
  }
  for (const bool first : {false, true}) {
    for (const bool copy : {false, std::is_same_v<W, float>}) {
      for (const W scale : {W{1}, W(0.3), std::numeric_limits<W>::max()}) {
        expect_specified(kernel, name, weight, gradient, m, v, ordinary_factors<W>(scale), first, copy);
      }
    }
  }
  // Random numbers of all magnitudes at every length around the vectors' and their tails.
  const unsigned seed = 20240607;
  std::mt19937_64 random(seed);
  const auto number = [&] {
    return static_cast<W>(
        std::ldexp(std::uniform_real_distribution<double>(-1, 1)(random), static_cast<int>(random() % 60) - 45));
  };
  for (std::size_t n = 0; n < 140; ++n) {
    weight.assign(n, 0), m.assign(n, 0), v.assign(n, 0), gradient.assign(n, G{});
    for (std::size_t i = 0; i < n; ++i) {
      weight[i] = number(), m[i] = number(), v[i] = std::abs(number()), gradient[i] = gradient_of<W, G>(number());
    }
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    expect_specified(kernel, name, weight, gradient, m, v, ordinary_factors<W>(W(0.7)), n % 2 == 1,
                     std::is_same_v<W, float> && n % 3 == 0);
  }
}

class AdamWKernels : public testing::TestWithParam<int> {};

TEST_P(AdamWKernels, GiveTheBitsOfTheSpecification) {
  const Kernels* kernels = kernels_if_supported(GetParam());
  if (kernels == nullptr) GTEST_SKIP() << "this processor does not run table " << GetParam();
  expect_all_specified<float, float>(kernels->fp32, kernels->name);
  expect_all_specified<float, std::uint16_t>(kernels->fp32_bf16_gradient, kernels->name);
  expect_all_specified<double, double>(kernels->fp64, kernels->name);
}
std::string table_name(const testing::TestParamInfo<int>& table) {
  const char* const names[kKernelTables] = {"baseline", "avx2", "avx512"};
  return names[table.param];
}
INSTANTIATE_TEST_SUITE_P(Tables, AdamWKernels, testing::Range(0, kKernelTables), table_name);

TEST(AdamWKernelTables, SelectsTheBestThatRuns) {
  const Kernels* best = nullptr;
  for (int i = 0; i < kKernelTables; ++i) {
    if (const Kernels* k = kernels_if_supported(i)) best = k;
  }
  EXPECT_EQ(&select_kernels(), best);
  EXPECT_EQ(kernels_if_supported(kKernelTables), nullptr);
}

}  // namespace
}  // namespace terrace::adamw
