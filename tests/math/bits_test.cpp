// Every operation gives the same bits for any number of threads and any alignment of its operands.
#include <terrace/tests/math/math_fixture.h>

namespace terrace::test {
namespace {

// Outputs of operations as bytes, computed on a pool of `threads` threads with operands `shift` elements off their alignment.
struct Outputs {
  Outputs(int threads, std::size_t shift_elements, std::uint64_t seed, DType dtype, void (*compute)(Outputs&, DType))
      : machine(threads), shift(shift_elements), generator(seed) {
    compute(*this, dtype);
  }
  Tensor in(DType dtype, Shape shape, double low = -1, double high = 1) {
    Tensor t(dtype, shape, shift);
    t.random(generator, low, high);
    return t;
  }
  [[nodiscard]] Tensor out(DType dtype, Shape shape) const { return {dtype, shape, shift}; }
  void keep(const char* name, const Tensor& t) {
    machine.sync();
    bits.emplace_back(name, t.bits());
  }

  Machine machine;
  std::size_t shift;
  std::mt19937_64 generator;
  std::vector<std::pair<std::string, std::string>> bits;
};

void products(Outputs& o, DType dtype) {
  const std::int64_t n = 530, c = 790, k = 70;
  for (const auto ta : {Transpose::no, Transpose::yes}) {
    for (const auto tb : {Transpose::no, Transpose::yes}) {
      const auto a = o.in(dtype, ta == Transpose::yes ? Shape{k, n} : Shape{n, k});
      const auto b = o.in(dtype, tb == Transpose::yes ? Shape{c, k} : Shape{k, c}), bias = o.in(dtype, {c});
      auto y = o.out(dtype, {n, c}), sum = o.in(accumulator(dtype), {n, c});
      o.machine.math.matmul(*o.machine.stream, y, a, ta, b, tb, bias);
      o.machine.math.matmul(*o.machine.stream, sum, a, ta, b, tb, {}, Accumulate::yes);
      o.keep("matmul", y);
      o.keep("matmul, accumulate", sum);
    }
  }
}

void all_others(Outputs& o, DType dtype) {
  Math& math = o.machine.math;
  Stream& s = *o.machine.stream;
  const auto in = [&](DType d, Shape shape, double low = -1, double high = 1) { return o.in(d, shape, low, high); };
  const auto out = [&](DType d, Shape shape) { return o.out(d, shape); };
  const auto keep = [&](const char* name, const Tensor& t) { o.keep(name, t); };
  const DType wide = accumulator(dtype);
  const std::int64_t n = 530, c = 790;
  const auto x = in(dtype, {n, c}), dy = in(dtype, {n, c}), gain = in(dtype, {c});
  auto y = out(dtype, {n, c}), mean = out(wide, {n}), rstd = out(wide, {n}), dx = out(dtype, {n, c});
  auto dgain = out(wide, {c}), dbias = out(wide, {c}), db = out(wide, {c});
  math.norm(s, y, mean, rstd, x, gain, gain, 1e-5);
  math.norm_input_grad(s, dx, dy, x, gain, mean, rstd, Accumulate::no);
  math.norm_weight_grad(s, dgain, dbias, dy, x, mean, rstd, Accumulate::no);
  auto sums = out(wide, {n});
  math.row_products(s, sums, dy, x, gain, 0.5, 1);
  keep("row_products", sums);
  math.bias_grad(s, db, dy, Accumulate::no);
  keep("norm", y), keep("mean", mean), keep("rstd", rstd), keep("norm dx", dx);
  keep("dgain", dgain), keep("dbias", dbias), keep("bias_grad", db);

  const AttentionShape shape{2, 265, 4, 2, 20};
  const auto qkv = in(dtype, {n, 160}), dout = in(dtype, {n, 80});
  auto attended = out(dtype, {n, 80}), lse = out(wide, {2, 4, 265}), dqkv = out(dtype, {n, 160});
  math.attention(s, shape, attended, lse, qkv);
  math.attention_grad(s, shape, dqkv, dout, attended, lse, qkv);
  keep("attention", attended), keep("lse", lse), keep("dqkv", dqkv);
  auto capped_shape = shape;
  capped_shape.scores = {.scale = 0.4, .cap = 2};
  math.attention(s, capped_shape, attended, lse, qkv);
  math.attention_grad(s, capped_shape, dqkv, dout, attended, lse, qkv);
  keep("capped attention", attended), keep("capped lse", lse), keep("capped dqkv", dqkv);
  math.soft_cap(s, y, x, 0.5);
  math.soft_cap_grad(s, dx, dy, y, 0.5);
  keep("soft_cap", y), keep("soft_cap_grad", dx);
  const auto rotated = in(dtype, {n, 160});
  TensorView view = rotated;
  view.shape = {n, 6, 20};
  math.rotary(s, view, 160, 265, 0, 10000, false);
  keep("rotary", rotated);

  for (const auto kind :
       {Activation::gelu_tanh, Activation::swiglu, Activation::geglu_tanh, Activation::gelu_erf, Activation::geglu_erf}) {
    const std::int64_t f = c / inputs_of(kind);
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
}

class BitsTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!test_skip_reason.empty()) GTEST_SKIP() << test_skip_reason;
  }
};

void expect_equal(const Outputs& got, const Outputs& want) {
  ASSERT_EQ(got.bits.size(), want.bits.size());
  for (std::size_t i = 0; i < want.bits.size(); ++i) {
    EXPECT_TRUE(got.bits[i].second == want.bits[i].second) << want.bits[i].first << " (" << i << ") differs";
  }
}

TEST_P(BitsTest, DependOnNeitherThreadsNorAddresses) {
  const auto seed = test_seed();
  const Outputs want(1, 0, seed, GetParam(), all_others);
  for (const auto& [threads, shift] : {std::pair{2, 0}, {3, 1}, {5, 0}, {1, 3}}) {
    SCOPED_TRACE(testing::Message() << threads << " threads, " << shift << " elements off, TERRACE_TEST_SEED=" << seed);
    expect_equal({threads, static_cast<std::size_t>(shift), seed, GetParam(), all_others}, want);
  }
}

// If a library computes products, their bits also depend on alignment; operands one element off and three elements off count as
// equally aligned.
class ProductBitsTest : public BitsTest {};

TEST_P(ProductBitsTest, DependOnNeitherThreadsNorAddresses) {
  const auto seed = test_seed();
  const Outputs aligned(1, 0, seed, GetParam(), products), off(3, 1, seed, GetParam(), products);
  if (!products_by_library(aligned.machine.math)) expect_equal(off, aligned);
  for (const auto& [threads, shift] : {std::pair{2, 0}, {5, 0}, {1, 3}}) {
    SCOPED_TRACE(testing::Message() << threads << " threads, " << shift << " elements off, TERRACE_TEST_SEED=" << seed);
    expect_equal({threads, static_cast<std::size_t>(shift), seed, GetParam(), products}, shift == 0 ? aligned : off);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, BitsTest, testing::ValuesIn(kDtypes),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });
INSTANTIATE_TEST_SUITE_P(Dtypes, ProductBitsTest, testing::ValuesIn(kDtypes),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

}  // namespace
}  // namespace terrace::test
