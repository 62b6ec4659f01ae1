// Layer and RMS normalisation compared with fp64 oracles and central differences.
#include <terrace/tests/math/math_fixture.h>

namespace terrace::test {
namespace {

constexpr double kEps = 1e-5;

struct Normed {
  Tensor y, mean, rstd;
};

class NormTest : public MathTest {
 protected:
  Normed run(const Tensor& x, const Tensor& gain, const Tensor& bias, std::int64_t rows, bool rms, double offset = 0) {
    Normed r{Tensor(x.dtype(), {rows, gain.size()}), Tensor(accumulator(x.dtype()), {rows}),
             Tensor(accumulator(x.dtype()), {rows})};
    math.norm(stream, r.y, rms ? TensorView{} : r.mean.view(), r.rstd, x, gain, rms ? TensorView{} : bias.view(), kEps, offset);
    machine.sync();
    return r;
  }
};

TEST_F(NormTest, EqualsTheOracle) {
  for (const auto dtype : kDtypes) {
    for (const auto shape : {Shape{1, 1}, Shape{5, 8}, Shape{7, 16}, Shape{33, 77}, Shape{40, 769}}) {
      for (const bool rms : {false, true}) {
        const std::int64_t n = shape[0], c = shape[1];
        const auto x = random(dtype, shape, -2, 3), gain = random(dtype, {c}), bias = random(dtype, {c});
        std::vector<double> y, means, rstds;
        for (std::int64_t i = 0; i < n; ++i) {
          double mean = 0, variance = 0;
          for (std::int64_t j = 0; j < c && !rms; ++j) mean += x.get(i * c + j) / static_cast<double>(c);
          for (std::int64_t j = 0; j < c; ++j) variance += std::pow(x.get(i * c + j) - mean, 2) / static_cast<double>(c);
          const double rstd = 1 / std::sqrt(variance + kEps);
          for (std::int64_t j = 0; j < c; ++j) {
            y.push_back((x.get(i * c + j) - mean) * rstd * gain.get(j) + (rms ? 0 : bias.get(j)));
          }
          means.push_back(mean);
          rstds.push_back(rstd);
        }
        const auto got = run(x, gain, bias, n, rms);
        const double statistics = tolerance(accumulator(dtype));
        expect_near(got.y, y, tolerance(dtype), "y");
        expect_near(got.rstd, rstds, statistics, "rstd");
        if (!rms) expect_near(got.mean, means, statistics, "mean");
      }
    }
  }
}

TEST_F(NormTest, GradientsEqualCentralDifferences) {
  for (const bool rms : {false, true}) {
    const std::int64_t n = 5, c = 19;
    auto x = random(DType::fp64, {n, c}), gain = random(DType::fp64, {c}), bias = random(DType::fp64, {c});
    const auto dy = random(DType::fp64, {n, c});
    const auto loss = [&] { return weighted(dy, run(x, gain, bias, n, rms).y); };
    const auto forward = run(x, gain, bias, n, rms);
    const TensorView mean = rms ? TensorView{} : forward.mean.view();
    Tensor dx(DType::fp64, {n, c}), dgain(DType::fp64, {c}), dbias(DType::fp64, {c});
    math.norm_input_grad(stream, dx, dy, x, gain, mean, forward.rstd, Accumulate::no);
    math.norm_weight_grad(stream, dgain, rms ? TensorView{} : dbias.view(), dy, x, mean, forward.rstd, Accumulate::no);
    machine.sync();
    expect_gradient(x, dx, loss, "dx");
    expect_gradient(gain, dgain, loss, "dgain");
    if (!rms) expect_gradient(bias, dbias, loss, "dbias");
  }
}

// With the offset 1, a weight w acts like a weight 1 + w and has the same gradient.
TEST_F(NormTest, AnOffsetIsAddedToTheWeights) {
  for (const auto dtype : kDtypes) {
    for (const bool rms : {false, true}) {
      const std::int64_t n = 21, c = 77;
      const auto x = random(dtype, {n, c}, -2, 3), bias = random(dtype, {c}), dy = random(dtype, {n, c});
      Tensor gain(dtype, {c}), sum(dtype, {c});
      for (std::int64_t j = 0; j < c; ++j)
        gain.set(j, static_cast<double>(j % 9 - 4) / 8), sum.set(j, 1 + gain.get(j));  // exact
      const auto got = run(x, gain, bias, n, rms, 1), want = run(x, sum, bias, n, rms);
      EXPECT_EQ(got.y.bits(), want.y.bits()) << name_of(dtype);
      Tensor dx(dtype, {n, c}), want_dx(dtype, {n, c});
      const TensorView mean = rms ? TensorView{} : got.mean.view();
      math.norm_input_grad(stream, dx, dy, x, gain, mean, got.rstd, Accumulate::no, 1);
      math.norm_input_grad(stream, want_dx, dy, x, sum, mean, got.rstd, Accumulate::no);
      machine.sync();
      EXPECT_EQ(dx.bits(), want_dx.bits()) << name_of(dtype);
    }
  }
}

// Rows split into parts that each add their share to the means: results and gradients of x equal those of whole rows.
TEST_F(NormTest, PartsOfRowsEqualWholeRows) {
  for (const auto dtype : kDtypes)
    for (const double offset : {0.0, 1.0}) {
      const DType wide = accumulator(dtype);
      const std::int64_t n = 13, c = 77;
      const auto x = random(dtype, {n, c}, -2, 3), gain = random(dtype, {c}), dy = random(dtype, {n, c});
      const auto whole = run(x, gain, gain, n, true, offset);
      Tensor dx(dtype, {n, c}), squares(wide, {n}), products(wide, {n}), sums(wide, {n});
      math.norm_input_grad(stream, dx, dy, x, gain, {}, whole.rstd, Accumulate::no, offset);
      machine.sync();
      const std::vector<std::pair<std::int64_t, std::int64_t>> parts{{0, 24}, {24, 8}, {32, 45}};
      const auto columns = [&](const Tensor& of, std::int64_t first, std::int64_t count) {
        const auto rows = of.size() / c;
        Tensor some(dtype, rows == 1 ? Shape{count} : Shape{rows, count});
        for (std::int64_t i = 0; i < rows * count; ++i) some.set(i, of.get(i / count * c + first + i % count));
        return some;
      };
      for (std::int64_t i = 0; i < n; ++i) squares.set(i, 0), products.set(i, 0);
      const auto add_to = [&](Tensor& all) {
        machine.sync();
        for (std::int64_t i = 0; i < n; ++i) all.set(i, all.get(i) + sums.get(i));
      };
      for (const auto& [first, count] : parts) {
        const auto of_x = columns(x, first, count), of_dy = columns(dy, first, count), of_gain = columns(gain, first, count);
        math.row_products(stream, sums, of_x, of_x, {}, 1.0 / c);
        add_to(squares);
        math.row_products(stream, sums, of_dy, of_x, of_gain, 1.0 / c, offset);
        add_to(products);
      }
      for (const auto& [first, count] : parts) {
        const auto of_x = columns(x, first, count), of_dy = columns(dy, first, count), of_gain = columns(gain, first, count);
        Tensor y(dtype, {n, count}), rstd(wide, {n}), of_dx(dtype, {n, count});
        math.norm(stream, y, {}, rstd, of_x, of_gain, {}, kEps, offset, squares);
        math.norm_input_grad(stream, of_dx, of_dy, of_x, of_gain, {}, rstd, Accumulate::no, offset, products);
        machine.sync();
        expect_near(y, columns(whole.y, first, count).values(), tolerance(dtype), "y");
        expect_near(rstd, whole.rstd.values(), tolerance(wide), "rstd");
        expect_near(of_dx, columns(dx, first, count).values(), tolerance(dtype), "dx");
      }
    }
}

// Narrow gradients compared with fp64 gradients of the same values.
TEST_F(NormTest, NarrowGradientsEqualWideOnes) {
  for (const auto dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const bool rms : {false, true}) {
      const std::int64_t n = 523, c = 131;
      const auto x = random(dtype, {n, c}), gain = random(dtype, {c}), bias = random(dtype, {c}), dy = random(dtype, {n, c});
      const auto widen = [](const Tensor& t, Shape shape) {
        Tensor w(DType::fp64, shape);
        for (std::int64_t i = 0; i < t.size(); ++i) w.set(i, t.get(i));
        return w;
      };
      struct Gradients {
        Tensor dx, dgain, dbias;
      };
      const auto gradients = [&](const Tensor& x_, const Tensor& gain_, const Tensor& bias_, const Tensor& dy_) {
        const auto f = run(x_, gain_, bias_, n, rms);
        const TensorView mean = rms ? TensorView{} : f.mean.view();
        Gradients g{Tensor(x_.dtype(), {n, c}), Tensor(accumulator(x_.dtype()), {c}), Tensor(accumulator(x_.dtype()), {c})};
        math.norm_input_grad(stream, g.dx, dy_, x_, gain_, mean, f.rstd, Accumulate::no);
        math.norm_weight_grad(stream, g.dgain, rms ? TensorView{} : g.dbias.view(), dy_, x_, mean, f.rstd, Accumulate::no);
        machine.sync();
        return g;
      };
      const auto narrow = gradients(x, gain, bias, dy);
      const auto wide = gradients(widen(x, {n, c}), widen(gain, {c}), widen(bias, {c}), widen(dy, {n, c}));
      expect_near(narrow.dx, wide.dx.values(), tolerance(dtype), "dx");
      expect_near(narrow.dgain, wide.dgain.values(), 1e-5, "dgain");
      if (!rms) expect_near(narrow.dbias, wide.dbias.values(), 1e-5, "dbias");
    }
  }
}

TEST_F(NormTest, GradientsAddTheWholeResult) {
  const std::int64_t n = 301, c = 77;
  const auto x = random(DType::fp32, {n, c}), gain = random(DType::fp32, {c}), dy = random(DType::fp32, {n, c});
  const auto f = run(x, gain, gain, n, false);
  Tensor dx(DType::fp32, {n, c}), dgain(DType::fp32, {c}), dbias(DType::fp32, {c});
  const auto start_x = random(DType::fp32, {n, c}), start_w = random(DType::fp32, {c});
  auto sum_x = start_x, sum_gain = start_w, sum_bias = start_w;
  math.norm_input_grad(stream, dx, dy, x, gain, f.mean, f.rstd, Accumulate::no);
  math.norm_input_grad(stream, sum_x, dy, x, gain, f.mean, f.rstd, Accumulate::yes);
  math.norm_weight_grad(stream, dgain, dbias, dy, x, f.mean, f.rstd, Accumulate::no);
  math.norm_weight_grad(stream, sum_gain, sum_bias, dy, x, f.mean, f.rstd, Accumulate::yes);
  machine.sync();
  for (std::int64_t i = 0; i < n * c; ++i) ASSERT_EQ(sum_x.get(i), static_cast<float>(start_x.get(i) + dx.get(i)));
  for (std::int64_t i = 0; i < c; ++i) {
    ASSERT_EQ(sum_gain.get(i), static_cast<float>(start_w.get(i) + dgain.get(i)));
    ASSERT_EQ(sum_bias.get(i), static_cast<float>(start_w.get(i) + dbias.get(i)));
  }
}

}  // namespace
}  // namespace terrace::test
