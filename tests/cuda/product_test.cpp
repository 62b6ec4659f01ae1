// The column-major arguments that cuBLASLt receives for a row-major product: a plain loop over them gives the right product.
#include <terrace/core/cuda/product.h>

#include <terrace/core/base/error.h>
#include <terrace/core/cuda/recorded_algorithms.h>
#include <terrace/tests/math/math_fixture.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

using cuda::ColumnMajor;
using cuda::ColumnProduct;
using cuda::key_of;
using cuda::ProductKey;
using cuda::RecordedAlgorithms;

// op(matrix)[row, column], as the library reads it.
double at(const Tensor& t, const ColumnMajor& m, bool transposed, std::int64_t row, std::int64_t column) {
  if (transposed) std::swap(row, column);
  EXPECT_LT(row, m.rows);
  EXPECT_LT(column, m.columns);
  EXPECT_GE(m.stride, m.rows);
  return t.get(column * m.stride + row);
}

class ProductTest : public MathTest {};

TEST_F(ProductTest, ByColumnsIsTheProductByRows) {
  const std::int64_t m = 5, n = 7, k = 3;
  for (const auto ta : {Transpose::no, Transpose::yes}) {
    for (const auto tb : {Transpose::no, Transpose::yes}) {
      const auto a = random(DType::fp64, ta == Transpose::yes ? Shape{k, m} : Shape{m, k});
      const auto b = random(DType::fp64, tb == Transpose::yes ? Shape{n, k} : Shape{k, n});
      const auto bias = random(DType::fp64, {n});
      Tensor want(DType::fp64, {m, n}), got(DType::fp64, {m, n});
      math.matmul(stream, want, a, ta, b, tb, bias);
      machine.sync();

      const ColumnProduct p = by_columns(key_of(got, a, ta, b, tb, true, false));
      ASSERT_EQ(p.result, (ColumnMajor{n, m, n}));
      for (std::int64_t column = 0; column < p.result.columns; ++column) {
        for (std::int64_t row = 0; row < p.result.rows; ++row) {
          double sum = bias.get(row);  // the library's bias has one element per row of its result
          for (std::int64_t l = 0; l < k; ++l) {
            sum += at(b, p.first, p.first_transposed, row, l) * at(a, p.second, p.second_transposed, l, column);
          }
          got.set(column * p.result.stride + row, sum);
        }
      }
      expect_near(got, want.values(), 1e-14, "product");
    }
  }
}

TEST_F(ProductTest, KeysTellApartAllThatAnAlgorithmDependsOn) {
  const Tensor a(DType::bf16, {8, 16}), b(DType::bf16, {16, 24}), c(DType::bf16, {8, 24}), wide(DType::fp32, {8, 24});
  const Tensor a_columns(DType::bf16, {16, 8}), b_columns(DType::bf16, {24, 16}), askew(DType::bf16, {8, 16}, 3);
  const Transpose no = Transpose::no, yes = Transpose::yes;
  const cuda::ProductKey keys[] = {
      key_of(c, a, no, b, no, false, false),
      key_of(wide, a, no, b, no, false, false),
      key_of(c, a_columns, yes, b, no, false, false),
      key_of(c, a, no, b_columns, yes, false, false),
      key_of(c, a, no, b, no, true, false),
      key_of(c, a, no, b, no, false, true),
      key_of(c, askew, no, b, no, false, false),
      key_of(MatrixView(c, 32), a, no, b, no, false, false),
      key_of(c, MatrixView(a, 32), no, b, no, false, false),
  };
  for (const auto& x : keys) {
    for (const auto& y : keys) EXPECT_EQ(x == y, &x == &y) << to_string(x) << "\n" << to_string(y);
  }
  EXPECT_EQ(keys[0], key_of(Tensor(DType::bf16, {2, 4, 24}), a, no, b, no, false, false)) << "leading dimensions are one";
  EXPECT_EQ(to_string(keys[0]), "[8, 24] = bf16 [8, 16] · [16, 24], to bf16, aligned to 16");
  EXPECT_EQ(to_string(keys[3]), "[8, 24] = bf16 [8, 16] · [24, 16]ᵀ, to bf16, aligned to 16");
  EXPECT_EQ(keys[6].aligned_bytes, 2);
  EXPECT_EQ(to_string(keys[7]), "[8, 24] = bf16 [8, 16] · [16, 24], to bf16, aligned to 16, rows of c every 32");
  EXPECT_EQ(by_columns(keys[7]).result, (ColumnMajor{24, 8, 32}));
  EXPECT_EQ(by_columns(keys[8]).second, (ColumnMajor{16, 8, 32}));
  EXPECT_EQ(by_columns(keys[8]).result, (ColumnMajor{24, 8, 24}));
}

// Recorded algorithms are read back word for word; a damaged record is refused, because another algorithm would change bits.
TEST(RecordedAlgorithms, GiveBackWhatWasChosen) {
  const ProductKey a{
      .m = 4096, .n = 1024, .k = 512, .b_transposed = true, .in = DType::bf16, .out = DType::bf16, .aligned_bytes = 16};
  auto b = a;
  b.accumulate = true;
  auto absent = a;
  absent.m = 1;
  const auto line = [](const ProductKey& key, const std::string& words) {
    return "matmul " + to_string(key) + ": algorithm 66, tile 20, workspace 0 bytes, words " + words + "\n";
  };
  std::string first = "00000000000000ff", rest;
  for (int i = 1; i < 8; ++i) rest += " 123456789abcdef" + std::to_string(i);
  const RecordedAlgorithms recorded("something else\n" + line(a, first + rest) + line(b, "ffffffffffffffff" + rest));
  EXPECT_EQ(recorded.size(), 2U);
  ASSERT_TRUE(recorded.of(a).has_value());
  EXPECT_EQ((*recorded.of(a))[0], 0xffU);
  EXPECT_EQ((*recorded.of(a))[7], 0x123456789abcdef7U);
  EXPECT_EQ((*recorded.of(b))[0], ~0ULL);
  EXPECT_FALSE(recorded.of(absent).has_value());
  EXPECT_EQ(RecordedAlgorithms().size(), 0U);
  // The run's own choices are used with any library, the machine's only with the library that chose them.
  EXPECT_EQ(recorded.library(), "");
  const cuda::KnownAlgorithms known(line(a, first + rest),
                                    "library one\n" + line(a, "ffffffffffffffff" + rest) + line(b, "ffffffffffffffff" + rest));
  for (const auto* const library : {"one", "two"}) EXPECT_EQ((*known.of(a, library))[0], 0xffU);
  ASSERT_TRUE(known.of(b, "one").has_value());
  EXPECT_EQ((*known.of(b, "one"))[0], ~0ULL);
  EXPECT_FALSE(known.of(b, "two").has_value());
  EXPECT_FALSE(known.of(absent, "one").has_value());
  const auto good = line(a, first + rest);
  for (const auto& damaged : {good.substr(0, good.size() - 3), line(a, first), line(a, first + rest + "0"), line(a, "x" + rest),
                              std::string("matmul nothing at all"), line(a, first + rest + " 0000000000000000")}) {
    EXPECT_EQ(ErrorKind::corrupt, thrown_by([&] { RecordedAlgorithms{damaged}; }).kind()) << damaged;
  }
}

}  // namespace
}  // namespace terrace::test
