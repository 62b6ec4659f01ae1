// Attention, its gradient, its decoding step and rotary positions against fp64 oracles and central differences.
#include <terrace/tests/math/math_fixture.h>

namespace terrace::test {
namespace {

struct Result {
  std::vector<double> out, lse;
};

Result oracle(const AttentionShape& s, const Tensor& qkv) {
  const auto x = qkv.values();
  const std::int64_t row = (s.heads + 2 * s.kv_heads) * s.head_dim, d = s.head_dim;
  Result r{std::vector<double>(static_cast<std::size_t>(s.batch * s.seq * s.heads * d)),
           std::vector<double>(static_cast<std::size_t>(s.batch * s.heads * s.seq))};
  const auto at = [&](std::int64_t b, std::int64_t t, std::int64_t head, std::int64_t i) {
    return x[static_cast<std::size_t>((b * s.seq + t) * row + head * d + i)];
  };
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t k = s.heads + h / (s.heads / s.kv_heads), v = k + s.kv_heads;
      for (std::int64_t t = 0; t < s.seq; ++t) {
        std::vector<double> p;
        double total = 0;
        for (std::int64_t u = 0; u <= t; ++u) {
          double score = 0;
          for (std::int64_t i = 0; i < d; ++i) score += at(b, t, h, i) * at(b, u, k, i);
          score *= s.scores.scale != 0 ? s.scores.scale : 1 / std::sqrt(static_cast<double>(d));
          p.push_back(std::exp(s.scores.cap == 0 ? score : s.scores.cap * std::tanh(score / s.scores.cap)));
          total += p.back();
        }
        r.lse[static_cast<std::size_t>((b * s.heads + h) * s.seq + t)] = std::log(total);
        for (std::int64_t u = 0; u <= t; ++u) {
          for (std::int64_t i = 0; i < d; ++i) {
            r.out[static_cast<std::size_t>(((b * s.seq + t) * s.heads + h) * d + i)] +=
                p[static_cast<std::size_t>(u)] / total * at(b, u, v, i);
          }
        }
      }
    }
  }
  return r;
}

AttentionShape with_rule(AttentionShape s, ScoreRule rule) {
  s.scores = rule;
  return s;
}
constexpr ScoreRule kCapped{.scale = 0.7, .cap = 1.25}, kScaled{.scale = 0.3};

class AttentionTest : public MathTest {
 protected:
  static Shape qkv_shape(const AttentionShape& s) { return {s.batch * s.seq, (s.heads + 2 * s.kv_heads) * s.head_dim}; }
  struct Forward {
    Tensor out, lse;
  };
  Forward forward(const AttentionShape& s, const Tensor& qkv) {
    Forward f{Tensor(qkv.dtype(), {s.batch * s.seq, s.heads * s.head_dim}),
              Tensor(accumulator(qkv.dtype()), {s.batch, s.heads, s.seq})};
    math.attention(stream, s, f.out, f.lse, qkv);
    machine.sync();
    return f;
  }
  Tensor backward(const AttentionShape& s, const Tensor& dout, const Forward& f, const Tensor& qkv) {
    Tensor dqkv(qkv.dtype(), qkv_shape(s));
    math.attention_grad(stream, s, dqkv, dout, f.out, f.lse, qkv);
    machine.sync();
    return dqkv;
  }
};

TEST_F(AttentionTest, EqualsTheOracle) {
  for (const auto dtype : kDtypes) {
    for (const auto& s : {AttentionShape{1, 1, 1, 1, 1}, AttentionShape{2, 7, 3, 3, 5}, AttentionShape{1, 129, 4, 2, 16},
                          AttentionShape{2, 65, 6, 1, 64}, AttentionShape{1, 530, 1, 1, 8},
                          with_rule({2, 67, 4, 2, 16}, kCapped), with_rule({1, 70, 2, 1, 8}, kScaled)}) {
      SCOPED_TRACE(testing::Message() << "seq " << s.seq << ' ' << name_of(dtype));
      const auto qkv = random(dtype, qkv_shape(s), -2, 2);
      const auto want = oracle(s, qkv);
      const auto got = forward(s, qkv);
      expect_near(got.out, want.out, tolerance(dtype), "out");
      expect_near(got.lse, want.lse, tolerance(accumulator(dtype)), "lse");
    }
  }
}

TEST_F(AttentionTest, GradientEqualsCentralDifferences) {
  for (const auto& s :
       {AttentionShape{2, 5, 2, 2, 3}, AttentionShape{1, 9, 4, 2, 4}, AttentionShape{1, 67, 2, 1, 2},
        with_rule({1, 9, 4, 2, 4}, kCapped), with_rule({1, 67, 2, 1, 2}, kCapped), with_rule({1, 9, 2, 2, 3}, kScaled)}) {
    auto qkv = random(DType::fp64, qkv_shape(s), -2, 2);
    const auto dout = random(DType::fp64, {s.batch * s.seq, s.heads * s.head_dim});
    const auto dqkv = backward(s, dout, forward(s, qkv), qkv);
    expect_gradient(
        qkv, dqkv, [&] { return weighted(dout, forward(s, qkv).out); }, "dqkv");
  }
}

TEST_F(AttentionTest, NarrowGradientsEqualWideOnes) {
  for (const auto dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const auto& s :
         {AttentionShape{2, 131, 4, 2, 24}, AttentionShape{1, 65, 3, 3, 64}, with_rule({1, 131, 4, 2, 24}, kCapped)}) {
      const auto qkv = random(dtype, qkv_shape(s), -2, 2);
      const auto dout = random(dtype, {s.batch * s.seq, s.heads * s.head_dim});
      Tensor wide_qkv(DType::fp64, qkv_shape(s)), wide_dout(DType::fp64, {s.batch * s.seq, s.heads * s.head_dim});
      for (std::int64_t i = 0; i < qkv.size(); ++i) wide_qkv.set(i, qkv.get(i));
      for (std::int64_t i = 0; i < dout.size(); ++i) wide_dout.set(i, dout.get(i));
      const auto narrow = backward(s, dout, forward(s, qkv), qkv);
      const auto wide = backward(s, wide_dout, forward(s, wide_qkv), wide_qkv);
      expect_near(narrow, wide.values(), dtype == DType::fp32 ? 2e-5 : dtype == DType::fp16 ? 2e-3 : 1.2e-2, "dqkv");
    }
  }
}

// Decoding the last position of a sequence from caches gives the same result as the whole attention.
TEST_F(AttentionTest, DecodingEqualsTheLastPosition) {
  for (const auto dtype : kDtypes) {
    for (const std::int64_t length : {1, 17, 100}) {
      const AttentionShape s{1, length, 6, 2, 24};
      const std::int64_t row = (s.heads + 2 * s.kv_heads) * s.head_dim, capacity = 128;
      const auto qkv = random(dtype, qkv_shape(s), -2, 2);
      const auto want = oracle(s, qkv).out;
      Tensor k(dtype, {s.kv_heads, capacity, s.head_dim}), v(dtype, {s.kv_heads, capacity, s.head_dim});
      Tensor out(dtype, {1, s.heads * s.head_dim});
      for (std::int64_t g = 0; g < s.kv_heads; ++g) {
        for (std::int64_t t = 0; t < length; ++t) {
          for (std::int64_t i = 0; i < s.head_dim; ++i) {
            k.set((g * capacity + t) * s.head_dim + i, qkv.get(t * row + (s.heads + g) * s.head_dim + i));
            v.set((g * capacity + t) * s.head_dim + i, qkv.get(t * row + (s.heads + s.kv_heads + g) * s.head_dim + i));
          }
        }
      }
      // q alone, a row that also holds keys and values, and the last of several rows.
      for (const auto& [rows, columns] :
           {std::pair{std::int64_t{1}, out.size()}, {std::int64_t{1}, row}, {std::int64_t{3}, row}}) {
        SCOPED_TRACE("q of " + std::to_string(rows) + " rows of " + std::to_string(columns));
        auto q = random(dtype, {rows, columns}, -2, 2);
        for (std::int64_t i = 0; i < out.size(); ++i) q.set((rows - 1) * columns + i, qkv.get((length - 1) * row + i));
        out.poison();
        math.attention_decode(stream, s, out, q, k, v, length);
        machine.sync();
        expect_near(out, {want.end() - out.size(), want.end()}, tolerance(dtype), "out");
      }
    }
  }
}

TEST_F(AttentionTest, RotaryTurnsEachPairAndBack) {
  for (const auto dtype : kDtypes) {
    const std::int64_t n = 21, heads = 3, dim = 38, row = 150, seq = 7, first = 11;
    const auto before = random(dtype, {n, row});
    auto x = before;
    TensorView view = x;
    view.shape = {n, heads, dim};
    math.rotary(stream, view, row, seq, first, 10000, false);
    machine.sync();
    auto want = before.values();
    for (std::int64_t t = 0; t < n; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < dim / 2; ++i) {
          const double angle = static_cast<double>(first + t % seq) * std::pow(10000.0, -2.0 * static_cast<double>(i) / dim);
          const auto a = static_cast<std::size_t>(t * row + h * dim + i), b = a + dim / 2;
          const double p = want[a], q = want[b];
          want[a] = p * std::cos(angle) - q * std::sin(angle);
          want[b] = q * std::cos(angle) + p * std::sin(angle);
        }
      }
    }
    expect_near(x, want, tolerance(dtype), "rotated");
    math.rotary(stream, view, row, seq, first, 10000, true);
    machine.sync();
    expect_near(x, before.values(), 2 * tolerance(dtype), "rotated back");
  }
}

}  // namespace
}  // namespace terrace::test
