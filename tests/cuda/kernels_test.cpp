// Every kernel except attention's, with odd sizes and poisoned results, overwriting and adding, compared with the CPU's math.
// (The oracles of tests/math run on the same device in cuda_math_test.)
#include <terrace/tests/cuda/kernel_case.h>

namespace terrace::test {
namespace {

const Shape kShapes[] = {{1, 1}, {3, 31}, {2, 33}, {70, 8}, {3, 1000}, {5, 2064}};

class KernelsTest : public KernelTest {
 protected:
  // Calls f for every dtype, every odd shape, and with overwriting and adding.
  template <class F>
  void for_each(F&& f) {
    for (const auto dtype : kDtypes) {
      for (const auto& shape : kShapes) {
        for (const auto accumulate : {Accumulate::no, Accumulate::yes}) f(dtype, shape[0], shape[1], accumulate);
      }
    }
  }
  // The content of a result before the operation: numbers to add to, or poison.
  Tensor start(DType dtype, Shape shape, Accumulate accumulate) {
    return accumulate == Accumulate::yes ? random(dtype, shape) : Tensor(dtype, shape);
  }
  static std::string text(const char* name, DType dtype, std::int64_t rows, std::int64_t columns, Accumulate accumulate) {
    return std::string(name) + " " + std::string(name_of(dtype)) + " [" + std::to_string(rows) + ", " +
           std::to_string(columns) + "]" + (accumulate == Accumulate::yes ? ", added" : "");
  }
  // Both sides round once and sum in fp32, each in its own order.
  static double near(DType dtype) { return 2 * tolerance(dtype); }
};

TEST_F(KernelsTest, Norm) {
  for_each([&](DType dtype, std::int64_t n, std::int64_t c, Accumulate accumulate) {
    const DType wide = accumulator(dtype);
    const auto x = random(dtype, {n, c}, -2, 3), gain = random(dtype, {c}), bias = random(dtype, {c});
    const auto dy = random(dtype, {n, c}), mean = random(wide, {n}), rstd = random(wide, {n}, 0.5, 2);
    expect_as_on_the_cpu({.name = text("parts of an RMS norm's rows", dtype, n, c, accumulate),
                          .in = {x, gain, dy, rstd, mean},
                          .out = {Tensor(dtype, {n, c}), Tensor(wide, {n}), start(dtype, {n, c}, accumulate), Tensor(wide, {n}),
                                  Tensor(wide, {n})},
                          .run =
                              [=](Math& m, Stream& s, const auto& in, const auto& out) {
                                m.norm(s, out[0], {}, out[1], in[0], in[1], {}, 1e-5, 1, in[3]);
                                m.norm_input_grad(s, out[2], in[2], in[0], in[1], {}, in[3], accumulate, 1, in[4]);
                                m.row_products(s, out[3], in[2], in[0], in[1], 0.5, 1);
                                m.row_products(s, out[4], in[0], in[0], {}, 2);
                              },
                          .tolerance = near(dtype)});
    for (const auto& [rms, offset] : {std::pair{false, 0.0}, {true, 0.0}, {true, 1.0}}) {
      const std::string kind = rms ? "RMS norm" : "layer norm";
      expect_as_on_the_cpu({.name = text(kind.c_str(), dtype, n, c, Accumulate::no),
                            .in = {x, gain, bias},
                            .out = {Tensor(dtype, {n, c}), Tensor(wide, {n}), Tensor(wide, {n})},
                            .run =
                                [rms = rms, offset = offset](Math& m, Stream& s, const auto& in, const auto& out) {
                                  m.norm(s, out[0], rms ? TensorView{} : out[1], out[2], in[0], in[1],
                                         rms ? TensorView{} : in[2], 1e-5, offset);
                                  if (rms) m.zero(s, out[1]);
                                },
                            .tolerance = near(dtype)});
      expect_as_on_the_cpu({.name = text((kind + " dx").c_str(), dtype, n, c, accumulate),
                            .in = {dy, x, gain, mean, rstd},
                            .out = {start(dtype, {n, c}, accumulate)},
                            .run =
                                [=, rms = rms, offset = offset](Math& m, Stream& s, const auto& in, const auto& out) {
                                  m.norm_input_grad(s, out[0], in[0], in[1], in[2], rms ? TensorView{} : in[3], in[4],
                                                    accumulate, offset);
                                },
                            .tolerance = near(dtype)});
      expect_as_on_the_cpu({.name = text((kind + " dgain").c_str(), dtype, n, c, accumulate),
                            .in = {dy, x, mean, rstd},
                            .out = {start(wide, {c}, accumulate), start(dtype, {c}, accumulate)},
                            .run =
                                [=, rms = rms](Math& m, Stream& s, const auto& in, const auto& out) {
                                  m.norm_weight_grad(s, out[0], rms ? TensorView{} : out[1], in[0], in[1],
                                                     rms ? TensorView{} : in[2], in[3], accumulate);
                                  if (rms) m.zero(s, out[1]);
                                },
                            .tolerance = near(dtype)});
    }
  });
}

// Rows of several parts, and a part that gives no warp a full share.
TEST_F(KernelsTest, SumsOverManyRows) {
  for (const auto dtype : kDtypes) {
    for (const std::int64_t n : {7, 64, 65, 600}) {
      const std::int64_t c = 37;
      for (const auto to : {dtype, accumulator(dtype)}) {
        expect_as_on_the_cpu(
            {.name = text("bias_grad", dtype, n, c, Accumulate::yes),
             .in = {random(dtype, {n, c})},
             .out = {random(to, {c})},
             .run = [](Math& m, Stream& s, const auto& in, const auto& out) { m.bias_grad(s, out[0], in[0], Accumulate::yes); },
             .tolerance = near(to)});
      }
    }
  }
}

TEST_F(KernelsTest, Activations) {
  for_each([&](DType dtype, std::int64_t n, std::int64_t f, Accumulate accumulate) {
    if (accumulate == Accumulate::yes) return;
    for (const auto kind :
         {Activation::gelu_tanh, Activation::swiglu, Activation::geglu_tanh, Activation::gelu_erf, Activation::geglu_erf}) {
      const std::int64_t width = inputs_of(kind) * f;
      expect_as_on_the_cpu({.name = text("activation", dtype, n, f, accumulate),
                            .in = {random(dtype, {n, width}, -9, 9), random(dtype, {n, f})},
                            .out = {Tensor(dtype, {n, f}), Tensor(dtype, {n, width})},
                            .run =
                                [=](Math& m, Stream& s, const auto& in, const auto& out) {
                                  m.activation(s, kind, out[0], in[0]);
                                  m.activation_grad(s, kind, out[1], in[1], in[0]);
                                },
                            .tolerance = near(dtype)});
    }
  });
}

TEST_F(KernelsTest, SoftCaps) {
  for_each([&](DType dtype, std::int64_t n, std::int64_t c, Accumulate accumulate) {
    if (accumulate == Accumulate::yes) return;
    expect_as_on_the_cpu({.name = text("soft_cap", dtype, n, c, accumulate),
                          .in = {random(dtype, {n, c}, -9, 9), random(dtype, {n, c})},
                          .out = {Tensor(dtype, {n, c}), Tensor(dtype, {n, c})},
                          .run =
                              [](Math& m, Stream& s, const auto& in, const auto& out) {
                                m.soft_cap(s, out[0], in[0], 3);
                                m.soft_cap_grad(s, out[1], in[1], out[0], 3);
                              },
                          .tolerance = near(dtype)});
  });
}

TEST_F(KernelsTest, AddScaleConvertAndZeroGiveTheCpusBits) {
  for_each([&](DType dtype, std::int64_t n, std::int64_t c, Accumulate accumulate) {
    expect_as_on_the_cpu(
        {.name = text("scale", dtype, n, c, accumulate),
         .in = {random(dtype, {n, c}), random(dtype, {c})},
         .out = {start(dtype, {n, c}, accumulate)},
         .run = [=](Math& m, Stream& s, const auto& in, const auto& out) { m.scale(s, out[0], in[0], in[1], accumulate); }});
    expect_as_on_the_cpu(
        {.name = text("multiply", dtype, n, c, Accumulate::no),
         .in = {random(dtype, {n, c})},
         .out = {Tensor(dtype, {n, c})},
         .run = [](Math& m, Stream& s, const auto& in, const auto& out) { m.multiply(s, out[0], in[0], 1.7); }});
    const auto wide = dtype == DType::fp64 ? DType::fp64 : DType::fp32;
    expect_as_on_the_cpu({.name = text("scale dgain", dtype, n, c, accumulate),
                          .in = {random(dtype, {n, c}), random(dtype, {n, c})},
                          .out = {start(wide, {c}, accumulate)},
                          .run = [=](Math& m, Stream& s, const auto& in,
                                     const auto& out) { m.norm_weight_grad(s, out[0], {}, in[0], in[1], {}, {}, accumulate); },
                          .tolerance = near(dtype)});
    for (const auto to : kDtypes) {
      expect_as_on_the_cpu(
          {.name = text("convert", dtype, n, c, accumulate) + " to " + std::string(name_of(to)),
           .in = {random(dtype, {n, c}, -100, 100)},
           .out = {start(to, {n, c}, accumulate)},
           .run = [=](Math& m, Stream& s, const auto& in, const auto& out) { m.convert(s, out[0], in[0], accumulate); }});
    }
    const std::int64_t part = c / 2 + 1, from = c - part;  // includes odd widths and offsets
    expect_as_on_the_cpu({.name = text("columns", dtype, n, c, accumulate),
                          .in = {random(dtype, {n, c})},
                          .out = {start(dtype, {n, c + 3}, Accumulate::yes)},
                          .run = [=](Math& m, Stream& s, const auto& in, const auto& out) {
                            m.columns(s, out[0], 2, in[0], from, part, accumulate);
                            m.columns(s, out[0], 0, in[0], 0, 1, accumulate);
                          }});
    expect_as_on_the_cpu({.name = text("add, zero", dtype, n, c, accumulate),
                          .in = {random(dtype, {n, c}), random(dtype, {n, c})},
                          .out = {Tensor(dtype, {n, c}), Tensor(dtype, {n, c})},
                          .run = [](Math& m, Stream& s, const auto& in, const auto& out) {
                            m.add(s, out[0], in[0], in[1]);
                            m.zero(s, out[1]);
                          }});
  });
}

TEST_F(KernelsTest, EmbeddingsGiveTheCpusBits) {
  for_each([&](DType dtype, std::int64_t n, std::int64_t c, Accumulate accumulate) {
    if (n % 3 == 2) return;  // the number of blocks depends only on the table's rows, so some shapes are enough
    // One token is so frequent that its uses fill several stretches of the index. The last rows of the vocabulary have their
    // own range, and some rows are not used.
    const std::int64_t count = 9 * n + 3, vocabulary = 130, seq = 5;
    auto tokens = random(DType::i32, {count}, 0, static_cast<double>(vocabulary));
    for (std::int64_t i = 0; i < count; i += 2) tokens.set(i, 128);
    for (std::int64_t i = 0; i < count; i += 5) tokens.set(i, -1);
    expect_as_on_the_cpu({.name = text("embed", dtype, n, c, accumulate),
                          .in = {tokens, random(dtype, {vocabulary, c}), random(dtype, {seq + 2, c})},
                          .out = {Tensor(dtype, {count, c}), Tensor(dtype, {count, c})},
                          .run = [=](Math& m, Stream& s, const auto& in, const auto& out) {
                            m.embed(s, out[0], in[0], in[1], {}, seq);
                            m.embed(s, out[1], in[0], in[1], in[2], seq, 2);
                          }});
    for (const auto to : {dtype, accumulator(dtype)}) {
      expect_as_on_the_cpu({.name = text("embed_grad", dtype, n, c, accumulate) + " to " + std::string(name_of(to)),
                            .in = {tokens, random(dtype, {count, c})},
                            .out = {start(to, {vocabulary, c}, accumulate), start(to, {seq + 2, c}, accumulate)},
                            .run = [=](Math& m, Stream& s, const auto& in, const auto& out) {
                              m.embed_grad(s, out[0], out[1], in[0], in[1], seq, accumulate);
                            }});
    }
  });
}

TEST_F(KernelsTest, CrossEntropy) {
  for_each([&](DType dtype, std::int64_t n, std::int64_t v, Accumulate accumulate) {
    if (accumulate == Accumulate::yes) return;
    auto targets = random(DType::i32, {n}, 0, static_cast<double>(v));
    if (n > 1) targets.set(n - 1, -1);
    expect_as_on_the_cpu({.name = text("cross_entropy", dtype, n, v, accumulate),
                          .in = {random(dtype, {n, v}, -20, 20), targets},
                          .out = {Tensor(DType::fp64, {n}), Tensor(dtype, {n, v})},
                          .run = [](Math& m, Stream& s, const auto& in,
                                    const auto& out) { m.cross_entropy(s, out[0], out[1], in[0], in[1], 0.25); },
                          .tolerance = near(dtype)});
  });
}

// The kernels of a softmax whose columns are split over ranks. The loss gets the CPU's log-sum-exps.
TEST_F(KernelsTest, CrossEntropyOfPartsOfTheColumns) {
  for_each([&](DType dtype, std::int64_t n, std::int64_t v, Accumulate accumulate) {
    if (accumulate == Accumulate::yes) return;
    const DType wide = accumulator(dtype);
    const auto logits = random(dtype, {n, v}, -20, 20);
    Tensor lse(wide, {n});
    math.log_sum_exp(stream, lse, logits);
    stream.synchronize();
    expect_as_on_the_cpu({.name = text("log_sum_exp", dtype, n, v, accumulate),
                          .in = {logits},
                          .out = {Tensor(wide, {n})},
                          .run = [](Math& m, Stream& s, const auto& in, const auto& out) { m.log_sum_exp(s, out[0], in[0]); },
                          .tolerance = near(wide)});
    auto targets = random(DType::i32, {n}, -1, static_cast<double>(v));
    if (n > 2) {  // a target elsewhere, the last column, and a row without a target
      targets.set(0, -1), targets.set(1, static_cast<double>(v - 1)), targets.set(2, -1);
      lse.set(2, std::numeric_limits<double>::infinity());
    }
    expect_as_on_the_cpu({.name = text("cross_entropy_part", dtype, n, v, accumulate),
                          .in = {logits, targets, lse},
                          .out = {Tensor(DType::fp64, {n}), Tensor(DType::fp64, {n}), Tensor(dtype, {n, v}), logits},
                          .run =
                              [](Math& m, Stream& s, const auto& in, const auto& out) {
                                m.cross_entropy_part(s, out[0], {}, in[0], in[1], in[2], 0.25);
                                m.cross_entropy_part(s, out[1], out[2], in[0], in[1], in[2], 0.25);
                                m.cross_entropy_part(s, out[1], out[3], out[3], in[1], in[2], 0.25);  // in place
                              },
                          .tolerance = near(dtype)});
  });
}

TEST_F(KernelsTest, LogSumsOfPartsAreMerged) {
  for (const auto dtype : {DType::fp32, DType::fp64}) {
    for (const std::int64_t n : {1, 31, 256, 257, 1000}) {
      for (const std::int64_t count : {1, 2, 3, 4, 8}) {
        auto parts = random(dtype, {count, n}, -300, 300);
        // In one column, all parts but the last are completely masked.
        for (std::int64_t k = 0; k + 1 < count; ++k) parts.set(k * n + n / 2, -std::numeric_limits<double>::infinity());
        auto targets = random(DType::i32, {n}, 0, 99);
        expect_as_on_the_cpu(
            {.name = text("merge_log_sums", dtype, count, n, Accumulate::no),
             .in = {parts, targets},
             .out = {Tensor(dtype, {n})},
             .run = [](Math& m, Stream& s, const auto& in, const auto& out) { m.merge_log_sums(s, out[0], in[0], in[1]); },
             .tolerance = near(dtype)});
      }
    }
  }
}

TEST_F(KernelsTest, IdsInPartAreTheCpus) {
  for (const std::int64_t n : {1, 33, 1023, 1024, 2500}) {
    const auto ids = random(DType::i32, {n}, -1, 300);
    expect_as_on_the_cpu({.name = text("ids_in_part", DType::i32, 1, n, Accumulate::no),
                          .in = {ids},
                          .out = {Tensor(DType::i32, {n}), ids},
                          .run = [](Math& m, Stream& s, const auto& in, const auto& out) {
                            m.ids_in_part(s, out[0], in[0], 100, 77);
                            m.ids_in_part(s, out[1], out[1], 100, 77);
                          }});
  }
}

TEST_F(KernelsTest, SumsGiveTheCpusBits) {
  for (const auto dtype : kDtypes) {
    for (const std::int64_t n : {1, 7, 8, 31, 33, 1000, 4096, 4103, 4136, 40003}) {
      const std::int64_t first = 1 + n * 7 % kSumBlock;  // the tensor is cut at any element
      expect_as_on_the_cpu(
          {.name = text("sums", dtype, 1, n, Accumulate::yes),
           .in = {random(dtype, {n})},
           .out = {Tensor(DType::fp64, {1}), random(DType::fp64, {1}), Tensor(DType::fp64, {square_blocks(n, kSumBlock)}),
                   Tensor(DType::fp64, {square_blocks(n, first)})},
           .run = [first](Math& m, Stream& s, const auto& in, const auto& out) {
             m.sum(s, out[0], in[0], Accumulate::no);
             m.sum(s, out[1], in[0], Accumulate::yes);
             m.sum_of_squares(s, out[2], in[0]);
             m.sum_of_squares(s, out[3], in[0], first);
           }});
    }
  }
  // More partial sums than the final block loads at once.
  const auto x = random(DType::bf16, {4096 * 1030 + 17});
  expect_as_on_the_cpu(
      {.name = "a sum of many parts",
       .in = {x},
       .out = {Tensor(DType::fp64, {1})},
       .run = [](Math& m, Stream& s, const auto& in, const auto& out) { m.sum(s, out[0], in[0], Accumulate::no); }});
}

TEST_F(KernelsTest, RotaryTurnsWhatItIsGivenAndNothingElse) {
  for (const auto dtype : kDtypes) {
    for (const std::int64_t dim : {2, 20, 64, 130}) {
      const std::int64_t n = 7, seq = 4, heads = 3, row = heads * dim + 2 * dim;
      Rotary yarn(10000);
      yarn.scaling = RotaryScaling::yarn;
      yarn.factor = 4;
      yarn.original = 512;
      yarn.length = 1.25;
      for (const auto& [inverse, angles] :
           {std::pair{false, Rotary(10000)}, {true, Rotary(10000)}, {false, yarn}, {true, yarn}}) {
        expect_as_on_the_cpu({.name = text("rotary", dtype, n, dim, Accumulate::no),
                              .in = {},
                              .out = {random(dtype, {n, row})},
                              .run =
                                  [=, inverse = inverse, angles = angles](Math& m, Stream& s, const auto&, const auto& out) {
                                    m.rotary(s, {out[0].data, dtype, {n, heads, dim}}, row, seq, 3, angles, inverse);
                                  },
                              .tolerance = near(dtype)});
      }
    }
  }
}

// An angle of 130,000 turns of the first pair: fp32 would lose two digits.
TEST_F(KernelsTest, RotaryIsExactAtLatePositions) {
  const std::int64_t n = 5, dim = 64, first = 819200;
  Tensor x(DType::fp32, {n, 1, dim});
  for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, i % dim < dim / 2 ? 1 : 0);
  Guarded rotated(x, 0, *gpu.device, *gpu.stream);
  gpu.math.rotary(*gpu.stream, rotated.view(), dim, n, first, 500000, false);
  rotated.read_back(*gpu.stream);
  const auto bits = rotated.bits();
  std::ranges::copy(std::as_bytes(std::span(bits)), x.data());
  for (std::int64_t p = 0; p < n; ++p) {
    for (std::int64_t i = 0; i < dim / 2; ++i) {
      const double angle = static_cast<double>(first + p) * std::pow(500000.0, -2.0 * static_cast<double>(i) / dim);
      ASSERT_NEAR(x.get(p * dim + i), std::cos(angle), 2e-7) << p << ' ' << i;
      ASSERT_NEAR(x.get(p * dim + dim / 2 + i), std::sin(angle), 2e-7) << p << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace terrace::test
