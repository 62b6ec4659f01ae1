// Blocks of attention: merged blocks of queries and keys equal the whole attention, and their gradients add up to its gradient;
// also with windows, and with queries that see no key.
#include <terrace/tests/math/math_fixture.h>

namespace terrace::test {
namespace {

struct Whole {
  std::int64_t batch, seq, heads, kv_heads, head_dim, window;
  ScoreRule scores = {};
};
constexpr ScoreRule kCapped{.scale = 0.7, .cap = 1.25};

class AttentionBlockTest : public MathTest {
 protected:
  static std::int64_t row(const Whole& s) { return (s.heads + 2 * s.kv_heads) * s.head_dim; }
  // A block of consecutive queries and consecutive keys of each sequence.
  static AttentionBlock block(const Whole& s, std::int64_t query, std::int64_t queries, std::int64_t key, std::int64_t keys) {
    return {s.batch,     s.heads,  s.kv_heads, s.head_dim, {query, queries, s.seq}, {key, keys, s.seq},
            query - key, s.window, s.scores};
  }
  static AttentionBlock all(const Whole& s) { return block(s, 0, s.seq, 0, s.seq); }

  struct Forward {
    Tensor out, lse;
  };
  Forward places(const Whole& s, DType dtype) {
    return {Tensor(dtype, {s.batch * s.seq, s.heads * s.head_dim}), Tensor(accumulator(dtype), {s.batch, s.heads, s.seq})};
  }
};

// Attention by its definition in fp64: a position sees itself and all earlier positions, or with a window only the last ones.
void oracle(const Whole& s, const Tensor& qkv, const Tensor& dout, std::vector<double>& out, std::vector<double>& lse,
            std::vector<double>& dqkv) {
  const auto d = s.head_dim, row = (s.heads + 2 * s.kv_heads) * d;
  const double scale = s.scores.scale != 0 ? s.scores.scale : 1 / std::sqrt(static_cast<double>(d)), cap = s.scores.cap;
  out.assign(static_cast<std::size_t>(s.batch * s.seq * s.heads * d), 0);
  lse.assign(static_cast<std::size_t>(s.batch * s.heads * s.seq), 0);
  dqkv.assign(static_cast<std::size_t>(s.batch * s.seq * row), 0);
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t t = 0; t < s.seq; ++t) {
        const auto k = s.heads + h / (s.heads / s.kv_heads), v = k + s.kv_heads;
        const auto at = [&](std::int64_t position, std::int64_t head) { return (b * s.seq + position) * row + head * d; };
        const auto result = ((b * s.seq + t) * s.heads + h) * d;
        const auto inner = [&](const Tensor& x, std::int64_t i, const Tensor& y, std::int64_t j) {
          double sum = 0;
          for (std::int64_t e = 0; e < d; ++e) sum += x.get(i + e) * y.get(j + e);
          return sum;
        };
        const auto first = s.window == 0 ? 0 : std::max<std::int64_t>(0, t - s.window + 1);
        std::vector<double> p, dp, slope;
        double total = 0, mean = 0;
        for (auto u = first; u <= t; ++u) {
          const double score = inner(qkv, at(t, h), qkv, at(u, k)) * scale, tangent = cap == 0 ? 0 : std::tanh(score / cap);
          p.push_back(std::exp(cap == 0 ? score : cap * tangent));
          slope.push_back(scale * (1 - tangent * tangent));
        }
        for (const auto x : p) total += x;
        lse[static_cast<std::size_t>((b * s.heads + h) * s.seq + t)] = std::log(total);
        for (auto u = first; u <= t; ++u) {
          auto& share = p[static_cast<std::size_t>(u - first)] /= total;
          for (std::int64_t e = 0; e < d; ++e) out[static_cast<std::size_t>(result + e)] += share * qkv.get(at(u, v) + e);
          dp.push_back(inner(dout, result, qkv, at(u, v)));
          mean += share * dp.back();
        }
        for (auto u = first; u <= t; ++u) {
          const auto share = p[static_cast<std::size_t>(u - first)];
          const auto ds = share * (dp[static_cast<std::size_t>(u - first)] - mean) * slope[static_cast<std::size_t>(u - first)];
          for (std::int64_t e = 0; e < d; ++e) {
            dqkv[static_cast<std::size_t>(at(t, h) + e)] += ds * qkv.get(at(u, k) + e);
            dqkv[static_cast<std::size_t>(at(u, k) + e)] += ds * qkv.get(at(t, h) + e);
            dqkv[static_cast<std::size_t>(at(u, v) + e)] += share * dout.get(result + e);
          }
        }
      }
}

TEST_F(AttentionBlockTest, AllPositionsAtOnceEqualTheOracleWithAndWithoutAWindow) {
  for (const auto dtype : kDtypes)
    for (const auto& s :
         {Whole{1, 1, 1, 1, 1, 0}, Whole{2, 7, 3, 3, 5, 0}, Whole{2, 7, 3, 3, 5, 1}, Whole{1, 131, 4, 2, 16, 37},
          Whole{1, 67, 2, 1, 8, 64}, Whole{1, 67, 4, 2, 8, 0, kCapped}, Whole{2, 31, 2, 1, 8, 9, kCapped}}) {
      SCOPED_TRACE(testing::Message() << "seq " << s.seq << " window " << s.window << ' ' << name_of(dtype));
      const auto qkv = random(dtype, {s.batch * s.seq, row(s)}, -2, 2);
      const auto dout = random(dtype, {s.batch * s.seq, s.heads * s.head_dim});
      std::vector<double> out, lse, gradient;
      oracle(s, qkv, dout, out, lse, gradient);
      auto f = places(s, dtype);
      Tensor dqkv(dtype, {s.batch * s.seq, row(s)});
      math.attention_block(stream, all(s), f.out, f.lse, qkv, qkv, Accumulate::no);
      math.attention_block_grad(stream, all(s), dqkv, dqkv, dout, f.out, f.lse, qkv, qkv, Accumulate::no, Accumulate::no);
      machine.sync();
      expect_near(f.out, out, tolerance(dtype), "out");
      expect_near(f.lse, lse, tolerance(accumulator(dtype)), "lse");
      const double bound = dtype == DType::bf16 ? 2e-2 : dtype == DType::fp16 ? 4e-3 : dtype == DType::fp32 ? 4e-5 : 1e-11;
      expect_near(dqkv, gradient, bound, "dqkv");
    }
}

// In any order, with keys and values in a separate tensor, and with sums in their own dtype.
TEST_F(AttentionBlockTest, BlocksAreTheWhole) {
  for (const auto dtype : kDtypes)
    for (const std::int64_t window : {0, 1, 5, 40}) {
      const Whole s{2, 72, 4, 2, 8, window};
      SCOPED_TRACE(testing::Message() << "window " << window << ' ' << name_of(dtype));
      const auto qkv = random(dtype, {s.batch * s.seq, row(s)}, -2, 2);
      const auto dout = random(dtype, {s.batch * s.seq, s.heads * s.head_dim});
      std::vector<double> out, lse, gradient;
      oracle(s, qkv, dout, out, lse, gradient);
      const auto width = s.heads * s.head_dim, keys_row = row(s) - width;
      Tensor kv(dtype, {s.batch * s.seq, keys_row});
      math.columns(stream, kv, 0, qkv, width, keys_row);
      Tensor sum(accumulator(dtype), {s.batch * s.seq, width}), rounded(dtype, {s.batch * s.seq, width}),
          of_rows(accumulator(dtype), {s.batch, s.heads, s.seq});
      Tensor dq(accumulator(dtype), {s.batch * s.seq, width}), dkv(accumulator(dtype), {s.batch * s.seq, keys_row});
      math.zero(stream, dq);
      math.zero(stream, dkv);
      const std::int64_t each = 18;
      std::vector<AttentionBlock> blocks;
      for (const std::int64_t q : {3, 0, 2, 1})
        for (const std::int64_t k : {1, 0, 3, 2}) blocks.push_back(block(s, q * each, each, k * each, each));
      for (std::size_t i = 0; i < blocks.size(); ++i)  // includes blocks of later keys, which no query sees
        math.attention_block(stream, blocks[i], sum, of_rows, qkv, kv, i % 4 == 0 ? Accumulate::no : Accumulate::yes);
      math.convert(stream, rounded, sum);
      for (const auto& b : blocks)
        math.attention_block_grad(stream, b, dq, dkv, dout, rounded, of_rows, qkv, kv, Accumulate::yes, Accumulate::yes);
      machine.sync();
      expect_near(rounded, out, tolerance(dtype), "out");
      expect_near(of_rows, lse, tolerance(accumulator(dtype)), "lse");
      std::vector<double> dq_wanted, dkv_wanted;
      for (std::size_t i = 0; i < gradient.size(); ++i)
        (static_cast<std::int64_t>(i) % row(s) < width ? dq_wanted : dkv_wanted).push_back(gradient[i]);
      const double bound = dtype == DType::bf16 ? 2e-2 : dtype == DType::fp16 ? 4e-3 : dtype == DType::fp32 ? 4e-5 : 1e-11;
      expect_near(dq, dq_wanted, bound, "dq");
      expect_near(dkv, dkv_wanted, bound, "dkv");
    }
}

TEST_F(AttentionBlockTest, QueriesWithoutAKeyGetZerosAndCountNothing) {
  const Whole s{1, 6, 2, 1, 4, 0};
  const auto qkv = random(DType::fp32, {s.seq, row(s)}, -2, 2);
  const auto dout = random(DType::fp32, {s.seq, s.heads * s.head_dim});
  auto f = places(s, DType::fp32);
  const auto later = block(s, 0, 3, 3, 3), own = block(s, 0, 3, 0, 3);
  EXPECT_EQ(0, later.pairs());
  EXPECT_EQ(6, own.pairs());
  math.attention_block(stream, later, f.out, f.lse, qkv, qkv, Accumulate::no);
  math.attention_block(stream, later, f.out, f.lse, qkv, qkv, Accumulate::yes);
  machine.sync();
  for (std::int64_t i = 0; i < 3 * s.heads * s.head_dim; ++i) EXPECT_EQ(0, f.out.get(i));
  for (const std::int64_t i : {0, 1, 2, 6, 7, 8}) EXPECT_EQ(-std::numeric_limits<double>::infinity(), f.lse.get(i));
  auto alone = places(s, DType::fp32);
  math.attention_block(stream, own, alone.out, alone.lse, qkv, qkv, Accumulate::no);
  math.attention_block(stream, own, f.out, f.lse, qkv, qkv, Accumulate::yes);
  math.attention_block(stream, later, f.out, f.lse, qkv, qkv, Accumulate::yes);
  Tensor dqkv(DType::fp32, {s.seq, row(s)});
  math.zero(stream, dqkv);
  math.attention_block_grad(stream, later, dqkv, dqkv, dout, f.out, f.lse, qkv, qkv, Accumulate::yes, Accumulate::yes);
  machine.sync();
  for (std::int64_t i = 0; i < 3 * s.heads * s.head_dim; ++i) EXPECT_EQ(alone.out.get(i), f.out.get(i));
  for (const std::int64_t i : {0, 1, 2, 6, 7, 8}) EXPECT_EQ(alone.lse.get(i), f.lse.get(i));
  for (std::int64_t i = 0; i < dqkv.size(); ++i) EXPECT_EQ(0, dqkv.get(i));
}

}  // namespace
}  // namespace terrace::test
