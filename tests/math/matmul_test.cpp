// Products compared with a naive fp64 oracle: every transposition, odd sizes, several tiles, bias, and adding to existing
// values.
#include <array>

#include <terrace/tests/math/math_fixture.h>

namespace terrace::test {
namespace {

// Half a unit in the last place of a number in [1, 2).
double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::fp64: return 0x1p-53;
    case DType::fp32: return 0x1p-24;
    case DType::fp16: return 0x1p-11;
    default: return 0x1p-8;
  }
}

struct Sizes {
  std::int64_t m, n, k;
};

std::vector<double> oracle(const Tensor& a, bool ta, const Tensor& b, bool tb, Sizes s) {
  std::vector<double> c(static_cast<std::size_t>(s.m * s.n));
  const auto av = a.values(), bv = b.values();
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t l = 0; l < s.k; ++l) {
      const double x = av[static_cast<std::size_t>(ta ? l * s.m + i : i * s.k + l)];
      for (std::int64_t j = 0; j < s.n; ++j) {
        c[static_cast<std::size_t>(i * s.n + j)] += x * bv[static_cast<std::size_t>(tb ? j * s.k + l : l * s.n + j)];
      }
    }
  }
  return c;
}

class MatmulTest : public MathTest {
 protected:
  Tensor product(DType c_dtype, const Tensor& a, bool ta, const Tensor& b, bool tb, Sizes s, TensorView bias = {},
                 const Tensor* start = nullptr) {
    Tensor c(c_dtype, {s.m, s.n});
    if (start) c = *start;
    math.matmul(stream, c, a, ta ? Transpose::yes : Transpose::no, b, tb ? Transpose::yes : Transpose::no, bias,
                start ? Accumulate::yes : Accumulate::no);
    machine.sync();
    return c;
  }
  // For a library's product: allows the rounding of the result, and `slack`.
  template <class Terms>
  void expect_sums(const Tensor& got, const Terms& terms, double slack) {
    const auto rounding = [&](double x) {
      return unit_roundoff(got.dtype()) * std::exp2(std::floor(std::log2(std::abs(x) + slack)));
    };
    for (std::int64_t i = 0; i < got.size(); ++i) {
      const auto [w, p, q] = terms(i);
      const double want = w + p + q;
      ASSERT_NEAR(got.get(i), want, rounding(want) + slack) << "at " << i;
    }
  }
};

TEST_F(MatmulTest, EqualsTheOracle) {
  for (const auto dtype : kDtypes) {
    for (const auto s : {Sizes{1, 1, 1}, Sizes{3, 5, 7}, Sizes{1, 130, 65}, Sizes{67, 1, 33}, Sizes{37, 41, 1},
                         Sizes{129, 65, 200}, Sizes{260, 700, 19}, Sizes{530, 391, 33}, Sizes{19, 101, 1100}}) {
      for (int variant = 0; variant < 8; ++variant) {
        const bool ta = variant & 1, tb = variant & 2, biased = variant & 4;
        const auto a = random(dtype, ta ? Shape{s.k, s.m} : Shape{s.m, s.k});
        const auto b = random(dtype, tb ? Shape{s.n, s.k} : Shape{s.k, s.n});
        const auto bias = random(dtype, {s.n});
        auto want = oracle(a, ta, b, tb, s);
        for (std::size_t i = 0; biased && i < want.size(); ++i) want[i] += bias.get(static_cast<std::int64_t>(i) % s.n);
        for (const auto c_dtype : {dtype, accumulator(dtype)}) {
          SCOPED_TRACE(testing::Message() << "m n k " << s.m << ' ' << s.n << ' ' << s.k << " variant " << variant);
          const auto got = product(c_dtype, a, ta, b, tb, s, biased ? bias.view() : TensorView{});
          expect_near(got, want, tolerance(c_dtype), "product");
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// (c + product) + bias, in the dtype of sums, rounded once. If the order of summation depends only on the shapes, the bits must
// agree. A library may sum in another order when it adds to c; only the rounding errors of this are allowed.
TEST_F(MatmulTest, AddsTheProductAndThenTheBias) {
  const Sizes s{261, 389, 129};
  for (const auto dtype : kDtypes) {
    for (int variant = 0; variant < 8; ++variant) {
      const bool ta = variant & 1, tb = variant & 2, biased = variant & 4;
      const auto a = random(dtype, ta ? Shape{s.k, s.m} : Shape{s.m, s.k});
      const auto b = random(dtype, tb ? Shape{s.n, s.k} : Shape{s.k, s.n});
      const auto bias = random(dtype, {s.n});
      const auto whole = product(accumulator(dtype), a, ta, b, tb, s);
      for (const auto c_dtype : {dtype, accumulator(dtype)}) {
        SCOPED_TRACE(testing::Message() << "variant " << variant << " of " << name_of(dtype) << " into " << name_of(c_dtype));
        const auto start = random(c_dtype, {s.m, s.n});
        const auto sum = product(c_dtype, a, ta, b, tb, s, biased ? bias.view() : TensorView{}, &start);
        const auto terms = [&](std::int64_t i) {
          return std::array{start.get(i), whole.get(i), biased ? bias.get(i % s.n) : 0.0};
        };
        if (products_by_library(math)) {
          expect_sums(sum, terms, unit_roundoff(accumulator(dtype)) * static_cast<double>(s.k + 3) * static_cast<double>(s.k));
        } else {
          Tensor want(c_dtype, {s.m, s.n});
          for (std::int64_t i = 0; i < want.size(); ++i) {
            const auto [w, p, q] = terms(i);
            want.set(i,
                     dtype == DType::fp64 ? w + p + q : static_cast<float>(w) + static_cast<float>(p) + static_cast<float>(q));
          }
          ASSERT_EQ(sum.bits(), want.bits());
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

// No term of a long sum is left out. On one GPU, cuBLASLt 13.1.1 left out the last 8 of these inner dimensions for outputs of 8
// × 1 to 128 × 128, if it chose an algorithm that splits the sum in 10 (github.com/facebookexperimental/triton, #2767).
TEST_F(MatmulTest, AllOnesCountTheInnerDimension) {
  const auto ones = [](Shape shape) {
    Tensor t(DType::bf16, std::move(shape));
    for (std::int64_t i = 0; i < t.size(); ++i) t.set(i, 1);
    return t;
  };
  std::vector<std::int64_t> sides{8, 32};
  if (test_has_gpu) sides.insert(sides.end(), {64, 128});
  for (const std::int64_t k : {11528, 57608}) {
    for (const auto m : sides) {
      for (const auto n : sides) {
        if (k > 20000 && m * n > 64 && !test_has_gpu) continue;  // it would take seconds
        for (int variant = 0; variant < 4; ++variant) {
          const bool ta = variant & 1, tb = variant & 2;
          const auto a = ones(ta ? Shape{k, m} : Shape{m, k}), b = ones(tb ? Shape{n, k} : Shape{k, n});
          SCOPED_TRACE(testing::Message() << "m n k " << m << ' ' << n << ' ' << k << " variant " << variant);
          const auto c = product(DType::fp32, a, ta, b, tb, {m, n, k});
          for (std::int64_t i = 0; i < c.size(); ++i) ASSERT_EQ(c.get(i), static_cast<double>(k)) << "at " << i;
        }
      }
    }
  }
}

// Rows with a gap after each: the gaps are neither read nor written, and the product is the same as for rows without gaps.
TEST_F(MatmulTest, GapsBehindRowsChangeNothing) {
  const Sizes s{37, 257, 101};
  constexpr std::int64_t kGap = 7;
  const auto apart = [&](const Tensor& dense) {
    const std::int64_t rows = dense.shape()[0], columns = dense.shape()[1];
    Tensor wide(dense.dtype(), {rows, columns + kGap});  // NaN between the rows
    for (std::int64_t i = 0; i < dense.size(); ++i) wide.set(i / columns * (columns + kGap) + i % columns, dense.get(i));
    return wide;
  };
  const auto rows_of_it = [](const Tensor& wide) {
    return MatrixView({wide.view().data, wide.dtype(), {wide.shape()[0], wide.shape()[1] - kGap}}, wide.shape()[1]);
  };
  for (const auto dtype : kDtypes) {
    for (int variant = 0; variant < 8; ++variant) {
      const bool ta = variant & 1, tb = variant & 2, adds = variant & 4;
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " variant " << variant);
      const auto a = random(dtype, ta ? Shape{s.k, s.m} : Shape{s.m, s.k});
      const auto b = random(dtype, tb ? Shape{s.n, s.k} : Shape{s.k, s.n}), start = random(dtype, {s.m, s.n});
      const auto want = product(dtype, a, ta, b, tb, s, {}, adds ? &start : nullptr);
      const Tensor a_apart = apart(a), b_apart = apart(b), c_apart = apart(start);
      math.matmul(stream, rows_of_it(c_apart), rows_of_it(a_apart), ta ? Transpose::yes : Transpose::no, rows_of_it(b_apart),
                  tb ? Transpose::yes : Transpose::no, {}, adds ? Accumulate::yes : Accumulate::no);
      machine.sync();
      Tensor got(dtype, {s.m, s.n});
      for (std::int64_t i = 0; i < got.size(); ++i) got.set(i, c_apart.get(i / s.n * (s.n + kGap) + i % s.n));
      if (products_by_library(math)) {
        expect_near(got, want.values(), tolerance(dtype), "product");
      } else {
        EXPECT_TRUE(got.bits() == want.bits());
      }
      EXPECT_TRUE(apart(got).bits() == c_apart.bits()) << "a gap was written";
      if (HasFailure()) return;
    }
  }
}

TEST_F(MatmulTest, FlattensLeadingDimensions) {
  const Sizes s{24, 10, 9};
  const auto a = random(DType::fp32, {2, 3, 4, 9}), b = random(DType::fp32, {9, 10});
  Tensor c(DType::fp32, {6, 4, 10});
  math.matmul(stream, c, a, Transpose::no, b, Transpose::no);
  machine.sync();
  expect_near(c, oracle(a, false, b, false, s), tolerance(DType::fp32), "product");
}

TEST_F(MatmulTest, RefusesOperandsThatDoNotGoTogether) {
  const auto a = random(DType::fp32, {3, 4}), b = random(DType::fp32, {5, 6}), wide = random(DType::fp64, {4, 6});
  const Tensor c(DType::fp32, {3, 6});
  EXPECT_THROW(math.matmul(stream, c, a, Transpose::no, b, Transpose::no), std::logic_error);
  EXPECT_THROW(math.matmul(stream, c, a, Transpose::no, wide, Transpose::no), std::logic_error);
  const auto fits = random(DType::fp32, {4, 6}), bias = random(DType::fp32, {6});
  const MatrixView overlapping({c.view().data, DType::fp32, {3, 6}}, 5), with_gaps({c.view().data, DType::fp32, {3, 6}}, 8);
  EXPECT_THROW(math.matmul(stream, overlapping, a, Transpose::no, fits, Transpose::no), std::logic_error);
  EXPECT_THROW(math.matmul(stream, with_gaps, a, Transpose::no, fits, Transpose::no, bias), std::logic_error);
}

TEST_F(MatmulTest, BiasGradientIsTheColumnSums) {
  for (const auto dtype : kDtypes) {
    for (const auto shape : {Shape{1, 1}, Shape{3, 70}, Shape{513, 131}, Shape{257, 64}}) {
      const auto dy = random(dtype, shape);
      std::vector<double> want(static_cast<std::size_t>(shape[1]));
      for (std::int64_t i = 0; i < dy.size(); ++i) want[static_cast<std::size_t>(i % shape[1])] += dy.get(i);
      Tensor db(accumulator(dtype), {shape[1]});
      math.bias_grad(stream, db, dy, Accumulate::no);
      machine.sync();
      expect_near(db, want, tolerance(accumulator(dtype)), "db");
      const auto total = random(accumulator(dtype), {shape[1]});
      Tensor sum(accumulator(dtype), {shape[1]});
      for (std::int64_t i = 0; i < sum.size(); ++i) sum.set(i, total.get(i) + db.get(i));
      math.bias_grad(stream, total, dy, Accumulate::yes);
      machine.sync();
      EXPECT_EQ(total.bits(), sum.bits()) << name_of(dtype);
    }
  }
}

}  // namespace
}  // namespace terrace::test
