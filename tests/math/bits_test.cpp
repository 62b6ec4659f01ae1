// Every operation gives the same bits for every number of threads, and wherever its operands lie.
#include "math_fixture.h"

namespace terrace::test {
namespace {

// All outputs of all operations, as bytes, on a pool of `threads` with operands `shift` elements off their alignment.
std::vector<std::pair<std::string, std::string>> all_bits(int threads, std::size_t shift, DType dtype, std::uint64_t seed) {
  Machine machine(threads);
  Math& math = machine.math;
  Stream& s = *machine.stream;
  std::mt19937_64 generator(seed);
  const auto in = [&](DType d, Shape shape, double low = -1, double high = 1) {
    Tensor t(d, shape, shift);
    t.random(generator, low, high);
    return t;
  };
  const auto out = [&](DType d, Shape shape) { return Tensor(d, shape, shift); };
  std::vector<std::pair<std::string, std::string>> bits;
  const auto keep = [&](const char* name, const Tensor& t) {
    machine.sync();
    bits.emplace_back(name, t.bits());
  };
  const DType wide = accumulator(dtype);

  const std::int64_t n = 530, c = 790, k = 70;
  for (const auto ta : {Transpose::no, Transpose::yes}) {
    for (const auto tb : {Transpose::no, Transpose::yes}) {
      const auto a = in(dtype, ta == Transpose::yes ? Shape{k, n} : Shape{n, k});
      const auto b = in(dtype, tb == Transpose::yes ? Shape{c, k} : Shape{k, c}), bias = in(dtype, {c});
      auto y = out(dtype, {n, c}), sum = in(wide, {n, c});
      math.matmul(s, y, a, ta, b, tb, bias);
      math.matmul(s, sum, a, ta, b, tb, {}, Accumulate::yes);
      keep("matmul", y);
      keep("matmul, accumulate", sum);
    }
  }
  const auto x = in(dtype, {n, c}), dy = in(dtype, {n, c}), gain = in(dtype, {c});
  auto y = out(dtype, {n, c}), mean = out(wide, {n}), rstd = out(wide, {n}), dx = out(dtype, {n, c});
  auto dgain = out(wide, {c}), dbias = out(wide, {c}), db = out(wide, {c});
  math.norm(s, y, mean, rstd, x, gain, gain, 1e-5);
  math.norm_input_grad(s, dx, dy, x, gain, mean, rstd, Accumulate::no);
  math.norm_weight_grad(s, dgain, dbias, dy, x, mean, rstd, Accumulate::no);
  math.bias_grad(s, db, dy, Accumulate::no);
  keep("norm", y), keep("mean", mean), keep("rstd", rstd), keep("norm dx", dx);
  keep("dgain", dgain), keep("dbias", dbias), keep("bias_grad", db);

  const AttentionShape shape{2, 265, 4, 2, 20};
  const auto qkv = in(dtype, {n, 160}), dout = in(dtype, {n, 80});
  auto attended = out(dtype, {n, 80}), lse = out(wide, {2, 4, 265}), dqkv = out(dtype, {n, 160});
  math.attention(s, shape, attended, lse, qkv);
  math.attention_grad(s, shape, dqkv, dout, attended, lse, qkv);
  keep("attention", attended), keep("lse", lse), keep("dqkv", dqkv);
  auto rotated = qkv;
  TensorView view = rotated;
  view.shape = {n, 6, 20};
  math.rotary(s, view, 160, 265, 0, 10000, false);
  keep("rotary", rotated);

  for (const auto kind : {Activation::gelu_tanh, Activation::swiglu}) {
    const std::int64_t f = kind == Activation::swiglu ? c / 2 : c;
    auto activated = out(dtype, {n, f}), grad = out(dtype, {n, c});
    const auto d = in(dtype, {n, f});
    math.activation(s, kind, activated, x);
    math.activation_grad(s, kind, grad, d, x);
    keep("activation", activated), keep("activation_grad", grad);
  }
  const auto tokens = in(DType::i32, {n}, 0, 3000), table = in(dtype, {3000, c});
  auto embedded = out(dtype, {n, c}), dtable = out(wide, {3000, c}), dpositions = out(wide, {265, c});
  math.embed(s, embedded, tokens, table, {}, 265);
  math.embed_grad(s, dtable, dpositions, tokens, dy, 265, Accumulate::no);
  keep("embed", embedded), keep("dtable", dtable), keep("dpositions", dpositions);

  const auto targets = in(DType::i32, {n}, 0, static_cast<double>(c));
  auto loss = out(DType::fp64, {n}), dlogits = out(dtype, {n, c});
  auto total = out(DType::fp64, {1}), squares = out(DType::fp64, {square_blocks(n * c, kSumBlock)});
  math.cross_entropy(s, loss, dlogits, x, targets, 0.1);
  math.sum(s, total, loss, Accumulate::no);
  math.sum_of_squares(s, squares, x);
  auto parts = out(wide, {3, n}), whole = out(wide, {n}), part_loss = out(DType::fp64, {n}), part_grad = out(dtype, {n, c});
  auto places = out(DType::i32, {n});
  const std::size_t part_bytes = static_cast<std::size_t>(n) * size_of(wide);
  for (std::size_t p = 0; p < 3; ++p) {
    const TensorView part[] = {x, dy, dx};
    math.log_sum_exp(s, {parts.view().data + p * part_bytes, wide, {n}}, part[p]);
  }
  math.merge_log_sums(s, whole, parts, targets);
  math.ids_in_part(s, places, targets, 100, 400);
  math.cross_entropy_part(s, part_loss, part_grad, x, places, whole, 0.1);
  keep("log_sum_exp", parts), keep("merge_log_sums", whole), keep("ids_in_part", places);
  keep("cross_entropy_part, loss", part_loss), keep("cross_entropy_part, dlogits", part_grad);
  keep("loss", loss), keep("dlogits", dlogits), keep("sum", total), keep("sum_of_squares", squares);
  return bits;
}

class BitsTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!test_skip_reason.empty()) GTEST_SKIP() << test_skip_reason;
  }
};

TEST_P(BitsTest, DependOnNeitherThreadsNorAddresses) {
  const auto seed = test_seed();
  const auto want = all_bits(1, 0, GetParam(), seed);
  for (const auto& [threads, shift] : {std::pair{2, 0}, {3, 1}, {5, 0}, {1, 3}}) {
    const auto got = all_bits(threads, static_cast<std::size_t>(shift), GetParam(), seed);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(got[i].second == want[i].second) << want[i].first << " (" << i << ") differs on " << threads << " threads, "
                                                   << shift << " elements off, TERRACE_TEST_SEED=" << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, BitsTest, testing::ValuesIn(kDtypes),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

}  // namespace
}  // namespace terrace::test
