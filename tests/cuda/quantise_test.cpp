// Matrices rounded to numbers of 8 bits: kernels have the CPU's bits. (float8_test has the oracle of the specification.)
#include <terrace/core/math/float8.h>

#include <terrace/tests/cuda/kernel_case.h>

namespace terrace::test {
namespace {

enum class Writes : std::uint8_t { codes, turned, both };

class QuantiseTest : public KernelTest {
 protected:
  void expect_bits(const Tensor& x, DType to, Writes what, std::int64_t columns) {
    const auto rows = x.shape()[0], stride = x.shape()[1];
    const bool codes = what != Writes::turned, turned = what != Writes::codes;
    std::vector<Tensor> out{Tensor(DType::fp32, {1})};
    if (codes) out.emplace_back(to, Shape{rows, math::float8_columns(columns)});
    if (turned) out.emplace_back(to, Shape{columns, math::float8_columns(rows)});
    expect_as_on_the_cpu({.name = std::string(name_of(x.dtype())) + " to " + std::string(name_of(to)) +
                                  (codes ? ", " : ", only ") + (turned ? "transposed, " : "") + std::to_string(rows) + " x " +
                                  std::to_string(columns) + " every " + std::to_string(stride),
                          .in = {x},
                          .out = std::move(out),
                          .run = [=](Math& m, Stream& s, const auto& in, const auto& to_be) {
                            m.quantise(s, codes ? to_be[1] : TensorView{}, turned ? to_be.back() : TensorView{}, to_be[0],
                                       MatrixView(TensorView{in[0].data, in[0].dtype, {rows, columns}}, stride));
                          }});
  }
};

TEST_F(QuantiseTest, HasTheCpusBits) {
  for (const auto of : {DType::bf16, DType::fp32, DType::fp16})
    for (const auto to : {DType::e4m3, DType::e5m2})
      for (const auto what : {Writes::codes, Writes::turned, Writes::both})
        for (const auto& [rows, columns, gap] :
             {std::array<std::int64_t, 3>{1, 1, 0}, {3, 200, 0}, {130, 64, 0}, {65, 129, 7}}) {
          auto x = random(of, {rows, columns + gap}, -3, 3);
          for (std::int64_t i = 0; i < x.size(); i += 5) x.set(i, x.get(i) * 0x1p-13);
          expect_bits(x, to, what, columns);
        }
}

// The greatest magnitude lies in the last part, and there are more rows than parts.
TEST_F(QuantiseTest, FindsTheGreatestOfManyRows) {
  for (const std::int64_t at : {0, 1, 2 * 1500 - 1, 2 * 1024 + 1}) {
    auto x = random(DType::bf16, {1500, 2}, -1, 1);
    x.set(at, -1000);
    expect_bits(x, DType::e4m3, Writes::codes, 2);
  }
}

TEST_F(QuantiseTest, ZerosAndWhatIsNotFinite) {
  auto x = random(DType::bf16, {70, 70});
  for (const double bad : {HUGE_VAL, 0x1p100}) {
    x.set(4000, bad);
    expect_bits(x, DType::e5m2, Writes::both, 70);
  }
  for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, 0);
  expect_bits(x, DType::e5m2, Writes::codes, 70);
}

}  // namespace
}  // namespace terrace::test
