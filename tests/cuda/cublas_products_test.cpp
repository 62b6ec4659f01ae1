// The GPU's products with a fake cuBLASLt: the arguments that it receives, and those that it must not receive. (Numbers are
// tested by tests/math/matmul_test.cpp and bits_test.cpp in the same program.)
#include <gmock/gmock.h>

#include <terrace/core/math/float8.h>
#include <terrace/tests/math/math_fixture.h>
#include <terrace/tests/support/gpu/fake_cublaslt.h>

#include <terrace/tests/cuda/emulated_gpu.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CublasProductsTest : public testing::Test {
 protected:
  void make(std::string algorithms = {}) {
    gpu_ = make_emulated_gpu(pool_, {.kernel = "warps", .algorithms = std::move(algorithms)});
  }
  void TearDown() override {
    gpu_.reset();
    EXPECT_EQ(fake_cublaslt::live_objects(), 0);
  }

  static Tensor filled(DType dtype, Shape shape, std::size_t shift = 0) {
    std::mt19937_64 generator(7);
    Tensor t(dtype, shape, shift);
    return t.random(generator);
  }
  // Compares c with a[m, k] · b[k, n] + bias, summed in fp64.
  void expect_right(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& bias) {
    const std::int64_t m = c.view().shape[0], n = c.view().shape[1], k = a.size() / m;
    std::vector<double> want(static_cast<std::size_t>(m * n));
    for (std::int64_t i = 0; i < m * n; ++i) {
      want[static_cast<std::size_t>(i)] = bias.view().empty() ? 0 : bias.get(i % n);
      for (std::int64_t l = 0; l < k; ++l) want[static_cast<std::size_t>(i)] += a.get(i / n * k + l) * b.get(l * n + i % n);
    }
    const auto stream = gpu_->make_stream("compute");
    gpu_->math().matmul(*stream, c, a, Transpose::no, b, Transpose::no, bias);
    stream->synchronize();
    expect_near(c, want, tolerance(c.dtype()), "product");
  }
  Math& math() { return gpu_->math(); }

  std::unique_ptr<Device> gpu_;

 private:
  ThreadPool pool_{2};
};

// One product keeps its algorithm while the bias has different addresses. On a GPU, a kernel that reads a bias in words of 16
// bytes faults at unaligned addresses.
TEST_F(CublasProductsTest, ABiasMayLieAnywhere) {
  for (const auto dtype : {DType::bf16, DType::fp32}) {
    make();
    const auto a = filled(dtype, {16, 32}), b = filled(dtype, {32, 24});
    for (const std::size_t shift : {0, 1, 3, 8, 16}) {
      SCOPED_TRACE(testing::Message() << shift << " elements off, " << name_of(dtype));
      expect_right(Tensor(dtype, {16, 24}), a, b, filled(dtype, {24}, shift));
    }
    EXPECT_EQ(std::ranges::count(math().algorithms(), '\n'), 2) << "one product, and the library: " << math().algorithms();
  }
}

TEST_F(CublasProductsTest, ABiasIsWidenedToTheResult) {
  make();
  for (const auto dtype : {DType::bf16, DType::fp16})
    expect_right(Tensor(DType::fp32, {16, 24}), filled(dtype, {16, 32}), filled(dtype, {32, 24}), filled(dtype, {24}));
  expect_right(Tensor(DType::fp64, {16, 24}), filled(DType::fp64, {16, 32}), filled(DType::fp64, {32, 24}),
               filled(DType::fp64, {24}));
}

// A long sum of a few tiles is split, because one block for each tile would leave most of a GPU idle: but not before a bias,
// nor where the library may drop terms, nor if there are many tiles.
TEST_F(CublasProductsTest, ASumIsSplitWhereThatIsSafeAndWorthIt) {
  const auto expect = [&](const char* split, std::int64_t m, std::int64_t n, std::int64_t k, bool biased) {
    make();
    const Tensor c(DType::fp32, {m, n});
    const auto a = filled(DType::bf16, {m, k}), b = filled(DType::bf16, {k, n}), bias = filled(DType::bf16, {n});
    const auto stream = gpu_->make_stream("compute");
    math().matmul(*stream, c, a, Transpose::no, b, Transpose::no, biased ? bias.view() : TensorView{});
    stream->synchronize();
    EXPECT_THAT(math().algorithms(), HasSubstr(split)) << m << " x " << n << " x " << k << ", bias " << biased;
  };
  expect("split 10,", 16, 24, 2048, false);
  expect("split 1,", 16, 24, 2048, true);
  expect("split 1,", 16, 24, 2048 + 64, false);
  expect("split 1,", 900, 1000, 1024, false);
}

// Experts get another number of tokens in each step: they share algorithms, and the record stays short.
TEST_F(CublasProductsTest, NumbersOfTokensShareAlgorithms) {
  make();
  const auto weights = filled(DType::bf16, {8, 24});
  for (std::int64_t tokens = 100; tokens <= 400; tokens += 3) {
    const auto x = filled(DType::bf16, {tokens, 8});
    expect_right(Tensor(DType::bf16, {tokens, 24}), x, weights, {});
  }
  // The library, one for each of 100, 103 … 127, one for up to each of 256, 384 and 512, and one for exactly 256.
  EXPECT_EQ(std::ranges::count(math().algorithms(), '\n'), 1 + 10 + 3 + 1) << math().algorithms();
}

// With --canonical-reduction, one rank adds a product to a gradient and another one adds the product that it has received.
TEST_F(CublasProductsTest, AProductThatIsAddedHasTheAlgorithmOfOneThatIsNot) {
  make();
  const auto a = filled(DType::fp32, {16, 32}), b = filled(DType::fp32, {32, 24});
  const auto stream = gpu_->make_stream("compute");
  for (const auto accumulate : {Accumulate::no, Accumulate::yes}) {
    Tensor c(DType::fp32, {16, 24});
    for (std::int64_t i = 0; i < c.size(); ++i) c.set(i, 0);
    math().matmul(*stream, c, a, Transpose::no, b, Transpose::no, {}, accumulate);
    stream->synchronize();
  }
  EXPECT_EQ(std::ranges::count(math().algorithms(), '\n'), 2) << math().algorithms();
}

// A run that was begun when any sum could be split may have recorded such an algorithm.
TEST_F(CublasProductsTest, ARecordedSplitThatMayDropTermsIsRefused) {
  make();
  const auto a = filled(DType::bf16, {16, 2048}), b = filled(DType::bf16, {2048, 24});
  expect_right(Tensor(DType::bf16, {16, 24}), a, b, {});
  auto recorded = math().algorithms();
  for (auto at = recorded.find("2048"); at != std::string::npos; at = recorded.find("2048")) recorded.replace(at, 4, "2056");
  make(recorded);
  EXPECT_THAT(
      refusal_of([&] {
        expect_right(Tensor(DType::bf16, {16, 24}), filled(DType::bf16, {16, 2056}), filled(DType::bf16, {2056, 24}), {});
      }),
      AllOf(HasSubstr("2056"), HasSubstr("splits the sum"), HasSubstr("remove algorithms.txt")));
}

TEST_F(CublasProductsTest, AnEmptySumIsTheBias) {
  make();
  const Tensor none(DType::bf16, {4, 0}), neither(DType::bf16, {0, 8});
  for (const auto dtype : {DType::bf16, DType::fp32}) {
    expect_right(Tensor(dtype, {4, 8}), none, neither, filled(DType::bf16, {8}));
    expect_right(Tensor(dtype, {4, 8}), none, neither, {});
  }
}

// An algorithm for aligned operands must not receive unaligned ones; the error names the product.
TEST_F(CublasProductsTest, OperandsThatTheirAlgorithmCannotReadAreRefused) {
  make();
  const auto a = filled(DType::bf16, {16, 32}), b = filled(DType::bf16, {32, 24}), off = filled(DType::bf16, {32, 24}, 1);
  expect_right(Tensor(DType::bf16, {16, 24}), a, b, {});
  auto recorded = math().algorithms();
  const std::string aligned = "aligned to 16";
  recorded.replace(recorded.find(aligned), aligned.size(), "aligned to 2");
  expect_right(Tensor(DType::bf16, {16, 24}), a, off, {});  // an algorithm chosen for these operands can
  make(recorded);
  EXPECT_THAT(thrown_by([&] {
                expect_right(Tensor(DType::bf16, {16, 24}), a, off, {});
              }).what(),
              AllOf(HasSubstr("matmul [16, 24] = bf16 [16, 32] · [32, 24], to bf16, aligned to 2"), HasSubstr("cublasLtMatmul"),
                    HasSubstr("CUBLAS_STATUS_NOT_SUPPORTED")));
}

// Operands of 8 bits: a gradient's format is not that of a weight, numbers of tokens share algorithms on both sides of a
// product, and what the library cannot multiply is refused with the product's name. (float8_test tests the numbers.)
TEST_F(CublasProductsTest, OperandsOf8BitsHaveTheirFormatsInTheRecord) {
  make();
  const auto stream = gpu_->make_stream("compute");
  const auto multiply = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    const auto columns = math::float8_columns(k);
    const auto a = filled(DType::e5m2, {m, columns}), b = filled(DType::e4m3, {n, columns}), scale = filled(DType::fp32, {1});
    const Tensor c(DType::fp32, {m, n});
    math().matmul_float8(*stream, c.view(), a, b, scale, scale);
    stream->synchronize();
  };
  multiply(16, 32, 100);
  EXPECT_THAT(math().algorithms(), HasSubstr("matmul [16, 32] = e5m2 [16, 128] · e4m3 [32, 128]ᵀ, to fp32, aligned to 16: "));
  for (std::int64_t tokens = 1; tokens <= 300; tokens += 13) {
    multiply(48, 64, tokens);              // a gradient of weights
    multiply(128 + tokens % 128, 80, 64);  // a gradient of activations
  }
  // The library, the first product, three of up to 128, 256 and 384 tokens, and one of up to 256 rows.
  EXPECT_LE(std::ranges::count(math().algorithms(), '\n'), 1 + 1 + 3 + 2) << math().algorithms();
  EXPECT_THAT(thrown_by([&] { multiply(16, 24, 100); }).what(),
              HasSubstr("matmul [16, 24] = e5m2 [16, 128] · e4m3 [24, 128]ᵀ"));
}

TEST_F(CublasProductsTest, ARecordOfAnotherLibraryIsRefused) {
  make();
  expect_right(Tensor(DType::bf16, {16, 24}), filled(DType::bf16, {16, 32}), filled(DType::bf16, {32, 24}), {});
  auto recorded = math().algorithms();
  recorded.replace(recorded.find("words ") + 6, 16, "00000000000000ff");
  make(recorded);
  EXPECT_THAT(thrown_by([&] {
                expect_right(Tensor(DType::bf16, {16, 24}), filled(DType::bf16, {16, 32}), filled(DType::bf16, {32, 24}), {});
              }).what(),
              AllOf(HasSubstr("cublasLtMatmulAlgoCheck, of the algorithm that is recorded for it"),
                    HasSubstr("CUBLAS_STATUS_INVALID_VALUE")));
}

}  // namespace
}  // namespace terrace::test
