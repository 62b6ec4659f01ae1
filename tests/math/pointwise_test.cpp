// Activations, additions, conversions and sums compared with fp64 oracles and central differences.
#include <tuple>

#include <terrace/tests/math/math_fixture.h>

namespace terrace::test {
namespace {

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double exact_gelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
double silu(double x) { return x / (1 + std::exp(-x)); }

class PointwiseTest : public MathTest {};

TEST_F(PointwiseTest, ActivationsEqualTheOracle) {
  for (const auto dtype : kDtypes) {
    for (const auto shape : {Shape{1, 1}, Shape{3, 15}, Shape{70, 513}}) {
      const auto x = random(dtype, shape, -12, 12), pair = random(dtype, {shape[0], 2 * shape[1]}, -12, 12);
      Tensor y(dtype, shape), z(dtype, shape), g(dtype, shape), e(dtype, shape), h(dtype, shape);
      math.activation(stream, Activation::gelu_tanh, y, x);
      math.activation(stream, Activation::swiglu, z, pair);
      math.activation(stream, Activation::geglu_tanh, g, pair);
      math.activation(stream, Activation::gelu_erf, e, x);
      math.activation(stream, Activation::geglu_erf, h, pair);
      machine.sync();
      std::vector<double> want_y, want_z, want_g, want_e, want_h;
      for (std::int64_t i = 0; i < x.size(); ++i) {
        const std::int64_t n = i / shape[1], j = i % shape[1];
        want_y.push_back(gelu(x.get(i)));
        const double gate = pair.get(2 * n * shape[1] + j), up = pair.get((2 * n + 1) * shape[1] + j);
        want_z.push_back(silu(gate) * up);
        want_g.push_back(gelu(gate) * up);
        want_e.push_back(exact_gelu(x.get(i))), want_h.push_back(exact_gelu(gate) * up);
      }
      expect_near(y, want_y, tolerance(dtype), "gelu");
      expect_near(z, want_z, tolerance(dtype), "swiglu");
      expect_near(g, want_g, tolerance(dtype), "geglu");
      expect_near(e, want_e, tolerance(dtype), "exact gelu");
      expect_near(h, want_h, tolerance(dtype), "exact geglu");
    }
  }
}

// Where the result is not close to zero, the error in fp32 is a few units in the last place.
TEST_F(PointwiseTest, ActivationsAreAccurateElementByElement) {
  const std::int64_t n = 20000;
  const auto x = random(DType::fp32, {1, n}, -6, 20);
  Tensor y(DType::fp32, {1, n}), z(DType::fp32, {1, n}), pair(DType::fp32, {1, 2 * n});
  for (std::int64_t i = 0; i < n; ++i) pair.set(i, x.get(i)), pair.set(n + i, 1);
  math.activation(stream, Activation::gelu_tanh, y, x);
  math.activation(stream, Activation::swiglu, z, pair);
  machine.sync();
  for (std::int64_t i = 0; i < n; ++i) {
    const double v = x.get(i), e = std::exp(-2 * std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v));
    const double ulp = std::numeric_limits<float>::epsilon();
    // The exponential's argument is first rounded to fp32; the error in units is proportional to the size of the argument.
    const double argument = std::abs(std::log(e)) * ulp * 2;
    ASSERT_NEAR(y.get(i) / (v / (1 + e)), 1, 4 * ulp + argument) << "gelu of " << v;
    ASSERT_NEAR(z.get(i) / silu(v), 1, 4 * ulp) << "silu of " << v;
  }
}

TEST_F(PointwiseTest, ActivationsOfExtremeValuesStayFinite) {
  const double values[] = {-1e30, -500, -89, -60, 0, 60, 89, 500, 1e30};
  Tensor x(DType::fp32, {1, 9}), dy(DType::fp32, {1, 9}), y(DType::fp32, {1, 9}), dx(DType::fp32, {1, 9});
  for (int i = 0; i < 9; ++i) x.set(i, i == 0 || i == 8 ? values[i] / 1e24 : values[i]), dy.set(i, 1);
  for (const auto kind : {Activation::gelu_tanh, Activation::gelu_erf}) {
    math.activation(stream, kind, y, x);
    math.activation_grad(stream, kind, dx, dy, x);
    machine.sync();
    for (int i = 0; i < 9; ++i) {
      EXPECT_NEAR(y.get(i), std::max(0.0, x.get(i)), 1e-5 * std::abs(x.get(i)) + 1e-30) << x.get(i);
      EXPECT_NEAR(dx.get(i), x.get(i) > 0 ? 1 : x.get(i) < 0 ? 0 : 0.5, 1e-6) << x.get(i);
    }
  }
}

TEST_F(PointwiseTest, ActivationGradientsEqualCentralDifferences) {
  for (const auto kind :
       {Activation::gelu_tanh, Activation::swiglu, Activation::geglu_tanh, Activation::gelu_erf, Activation::geglu_erf}) {
    const std::int64_t n = 7, f = 13, width = inputs_of(kind) * f;
    auto x = random(DType::fp64, {n, width}, -3, 3);
    const auto dy = random(DType::fp64, {n, f});
    Tensor y(DType::fp64, {n, f}), dx(DType::fp64, {n, width});
    math.activation_grad(stream, kind, dx, dy, x);
    machine.sync();
    expect_gradient(
        x, dx,
        [&] {
          math.activation(stream, kind, y, x);
          machine.sync();
          return weighted(dy, y);
        },
        "dx");
    for (const auto dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      Tensor nx(dtype, {n, width}), ndy(dtype, {n, f}), ndx(dtype, {n, width});
      for (std::int64_t i = 0; i < x.size(); ++i) nx.set(i, x.get(i));
      for (std::int64_t i = 0; i < dy.size(); ++i) ndy.set(i, dy.get(i));
      math.activation_grad(stream, kind, ndx, ndy, nx);
      machine.sync();
      expect_near(ndx, dx.values(), dtype == DType::fp32 ? 1e-5 : dtype == DType::fp16 ? 3e-3 : 2e-2, "narrow dx");
    }
  }
}

TEST_F(PointwiseTest, AddMayWriteAnOperand) {
  for (const auto dtype : kDtypes) {
    const auto x = random(dtype, {37, 1001}), r = random(dtype, {37, 1001});
    Tensor y(dtype, {37, 1001});
    auto over_x = x, over_r = r;
    math.add(stream, y, x, r);
    math.add(stream, over_x, over_x, r);
    math.add(stream, over_r, x, over_r);
    machine.sync();
    Tensor want(dtype, {37, 1001});
    for (std::int64_t i = 0; i < y.size(); ++i) {
      want.set(i, dtype == DType::fp64 ? x.get(i) + r.get(i) : static_cast<float>(x.get(i)) + static_cast<float>(r.get(i)));
    }
    EXPECT_EQ(y.bits(), want.bits());
    EXPECT_EQ(over_x.bits(), want.bits());
    EXPECT_EQ(over_r.bits(), want.bits());
  }
}

TEST_F(PointwiseTest, ScalingRoundsOnce) {
  const std::int64_t n = 37, c = 1001;
  for (const auto dtype : kDtypes) {
    const auto x = random(dtype, {n, c}), gain = random(dtype, {c}), start = random(dtype, {n, c});
    Tensor y(dtype, {n, c}), want(dtype, {n, c}), want_sum(dtype, {n, c});
    auto total = start;
    math.scale(stream, y, x, gain, Accumulate::no);
    math.scale(stream, total, x, gain, Accumulate::yes);
    machine.sync();
    for (std::int64_t i = 0; i < n * c; ++i) {
      const double a = x.get(i), g = gain.get(i % c), s = start.get(i);
      const bool wide = dtype == DType::fp64;
      const float product = static_cast<float>(a) * static_cast<float>(g);
      want.set(i, wide ? a * g : product);
      want_sum.set(i, wide ? s + a * g : static_cast<float>(s) + product);
    }
    EXPECT_EQ(y.bits(), want.bits()) << name_of(dtype);
    EXPECT_EQ(total.bits(), want_sum.bits()) << name_of(dtype);
  }
}

TEST_F(PointwiseTest, ScalingGradientsEqualCentralDifferences) {
  const std::int64_t n = 7, c = 33;
  auto x = random(DType::fp64, {n, c}), gain = random(DType::fp64, {c});
  const auto dy = random(DType::fp64, {n, c});
  Tensor y(DType::fp64, {n, c}), dx(DType::fp64, {n, c}), dgain(DType::fp64, {c});
  math.scale(stream, dx, dy, gain, Accumulate::no);
  math.norm_weight_grad(stream, dgain, {}, dy, x, {}, {}, Accumulate::no);
  machine.sync();
  const auto objective = [&] {
    math.scale(stream, y, x, gain, Accumulate::no);
    machine.sync();
    return weighted(dy, y);
  };
  expect_gradient(x, dx, objective, "dx");
  expect_gradient(gain, dgain, objective, "dgain");
}

TEST_F(PointwiseTest, MultiplyRoundsOnce) {
  for (const auto dtype : kDtypes) {
    const auto x = random(dtype, {37, 1001}, -9, 9);
    Tensor y(dtype, {37, 1001}), want(dtype, {37, 1001});
    auto over_x = x;
    math.multiply(stream, y, x, 33.94112549695428);
    math.multiply(stream, over_x, over_x, 33.94112549695428);
    machine.sync();
    for (std::int64_t i = 0; i < y.size(); ++i)
      want.set(i, dtype == DType::fp64 ? x.get(i) * 33.94112549695428 : static_cast<float>(x.get(i)) * 33.94112549695428F);
    EXPECT_EQ(y.bits(), want.bits());
    EXPECT_EQ(over_x.bits(), want.bits());
  }
}

TEST_F(PointwiseTest, SoftCapsEqualTheOracle) {
  for (const auto dtype : kDtypes)
    for (const double cap : {0.5, 30.0}) {
      const auto x = random(dtype, {3, 513}, -2 * cap, 2 * cap);
      Tensor y(dtype, {3, 513});
      math.soft_cap(stream, y, x, cap);
      machine.sync();
      std::vector<double> want;
      for (std::int64_t i = 0; i < x.size(); ++i) want.push_back(cap * std::tanh(x.get(i) / cap));
      expect_near(y, want, tolerance(dtype), "capped");
    }
  Tensor y(DType::fp32, {4}), fewer(DType::fp32, {3});
  EXPECT_THROW(math.soft_cap(stream, y, y, 0), std::logic_error);
  EXPECT_THROW(math.soft_cap(stream, y, fewer, 1), std::logic_error);
}

// Near 0, where a quotient of exponentials would cancel, and where tanh is almost 1.
TEST_F(PointwiseTest, SoftCapsAreAccurateElementByElement) {
  const std::int64_t n = 20000;
  auto x = random(DType::fp32, {n}, -12, 12);
  for (std::int64_t i = 0; i < 40; ++i) x.set(i, std::ldexp(i % 2 == 0 ? 1 : -1, static_cast<int>(4 - i)));
  Tensor y(DType::fp32, {n});
  math.soft_cap(stream, y, x, 1);
  machine.sync();
  for (std::int64_t i = 0; i < n; ++i) {
    const double want = std::tanh(x.get(i));
    ASSERT_NEAR(y.get(i), want, 4 * std::numeric_limits<float>::epsilon() * std::abs(want)) << x.get(i);
  }
}

TEST_F(PointwiseTest, SoftCapGradientsEqualCentralDifferences) {
  const double cap = 1.5;
  auto x = random(DType::fp64, {57}, -3, 3);
  const auto dy = random(DType::fp64, {57});
  Tensor y(DType::fp64, {57});
  math.soft_cap(stream, y, x, cap);
  auto dx = dy;
  math.soft_cap_grad(stream, dx, dx, y, cap);
  machine.sync();
  expect_gradient(
      x, dx,
      [&] {
        math.soft_cap(stream, y, x, cap);
        machine.sync();
        return weighted(dy, y);
      },
      "dx");
}

TEST_F(PointwiseTest, ConversionsRoundOnce) {
  const std::int64_t n = 40003;
  for (const auto to : kDtypes) {
    for (const auto from : kDtypes) {
      auto x = random(from, {n}, -100, 100);
      x.set(0, std::numeric_limits<double>::infinity());
      x.set(1, -0.0);
      Tensor y(to, {n}), want(to, {n}), want_sum(to, {n});
      const auto start = random(to, {n});
      auto total = start;
      math.convert(stream, y, x);
      math.convert(stream, total, x, Accumulate::yes);
      machine.sync();
      const bool wide = to == DType::fp64 || from == DType::fp64;
      for (std::int64_t i = 0; i < n; ++i) {
        want.set(i, x.get(i));
        want_sum.set(i, wide ? start.get(i) + x.get(i) : static_cast<float>(start.get(i)) + static_cast<float>(x.get(i)));
      }
      EXPECT_EQ(y.bits(), want.bits()) << name_of(from) << " to " << name_of(to);
      EXPECT_EQ(total.bits(), want_sum.bits()) << name_of(from) << " onto " << name_of(to);
    }
  }
  Tensor nan(DType::fp32, {17}), narrow(DType::bf16, {17});
  narrow.random(generator);
  math.convert(stream, narrow, nan);
  machine.sync();
  for (int i = 0; i < 17; ++i) EXPECT_TRUE(std::isnan(narrow.get(i)));
}

// Other columns stay unchanged.
TEST_F(PointwiseTest, ColumnsAreCopiedOrAddedWhereTheyBelong) {
  const std::int64_t rows = 37, y_columns = 29, x_columns = 41;
  for (const auto dtype : kDtypes)
    for (const auto accumulate : {Accumulate::no, Accumulate::yes})
      for (const auto& [first_y, first_x, count] : {std::tuple{0, 0, 29}, {3, 20, 21}, {28, 0, 1}, {16, 8, 8}, {5, 5, 0}}) {
        const auto x = random(dtype, {rows, x_columns}), before = random(dtype, {rows, y_columns});
        auto y = before, want = before;
        math.columns(stream, y, first_y, x, first_x, count, accumulate);
        machine.sync();
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < count; ++c) {
            const auto at = r * y_columns + first_y + c, from = r * x_columns + first_x + c;
            const double add = accumulate == Accumulate::yes ? before.get(at) : 0;
            want.set(at, dtype == DType::fp64 ? add + x.get(from) : static_cast<float>(add) + static_cast<float>(x.get(from)));
          }
        EXPECT_EQ(y.bits(), want.bits()) << name_of(dtype) << ", " << count << " columns";
      }
  Tensor y(DType::fp32, {4, 8}), x(DType::fp32, {4, 8}), fewer(DType::fp32, {3, 8});
  EXPECT_THROW(math.columns(stream, y, 6, x, 0, 3), std::logic_error);
  EXPECT_THROW(math.columns(stream, y, 0, x, -1, 3), std::logic_error);
  EXPECT_THROW(math.columns(stream, y, 0, fewer, 0, 3), std::logic_error);
}

TEST_F(PointwiseTest, ZeroClearsEveryByte) {
  for (const auto dtype : {DType::fp32, DType::bf16, DType::fp64, DType::i32}) {
    Tensor y(dtype, {100003});
    math.zero(stream, y);
    machine.sync();
    EXPECT_EQ(y.bits(), std::string(y.view().bytes(), '\0'));
  }
}

TEST_F(PointwiseTest, SumsEqualTheOracle) {
  for (const auto dtype : kDtypes) {
    for (const std::int64_t n : {1, 7, 4096, 4097, 100003}) {
      const auto x = random(dtype, {n});
      long double total = 0, squares = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        total += x.get(i);
        squares += static_cast<long double>(x.get(i)) * x.get(i);
      }
      Tensor sum(DType::fp64, {1}), more(DType::fp64, {1}), square(DType::fp64, {square_blocks(n, kSumBlock)});
      more.set(0, 3);
      math.sum(stream, sum, x, Accumulate::no);
      math.sum(stream, more, x, Accumulate::yes);
      math.sum_of_squares(stream, square, x);
      machine.sync();
      EXPECT_NEAR(sum.get(0), static_cast<double>(total), 1e-10);
      EXPECT_EQ(more.get(0), 3 + sum.get(0));
      double folded = 0;
      for (std::int64_t i = 0; i < square.view().elements(); ++i) folded += square.get(i);
      EXPECT_NEAR(folded, static_cast<double>(squares), 1e-10 * static_cast<double>(squares));
    }
  }
}

// Wherever the input is cut, the blocks after the cut have the same bits as in a single call.
TEST_F(PointwiseTest, BlocksOfSquaresDoNotDependOnTheCut) {
  for (const auto dtype : kDtypes) {
    const std::int64_t n = 5 * kSumBlock + 77, first = 960;
    const auto x = random(dtype, {n});
    const auto of = [&](std::int64_t from, std::int64_t count, std::int64_t first_block) {
      Tensor out(DType::fp64, {square_blocks(count, first_block)});
      const auto view = x.view();
      math.sum_of_squares(stream, out, {view.data + static_cast<std::size_t>(from) * size_of(dtype), dtype, {count}},
                          first_block);
      machine.sync();
      return out;
    };
    const auto whole = of(0, n, first);
    EXPECT_EQ(whole.view().elements(), 6);
    const auto head = of(0, first, first);
    EXPECT_EQ(head.get(0), whole.get(0));
    for (std::int64_t cut = 1; cut < 6; ++cut) {
      const auto from = first + (cut - 1) * kSumBlock;
      const auto rest = of(from, n - from, kSumBlock);
      for (std::int64_t i = cut; i < 6; ++i) EXPECT_EQ(rest.get(i - cut), whole.get(i)) << "block " << i << ", cut " << cut;
    }
  }
}

}  // namespace
}  // namespace terrace::test
