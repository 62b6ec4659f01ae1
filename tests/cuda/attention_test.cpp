// The GPU's attention kernels, run through the emulated lane and compared with an fp64 oracle and the CPU's math.
#include <terrace/core/cuda/kernels/attention_launch.h>

#include <terrace/tests/cuda/attention_fixture.h>

namespace terrace::test {
namespace {

// Every head dim with tensor-core kernels; odd lengths around the tiles' edges; heads that share keys; several sequences.
const std::vector<AttentionShape> kShapes = {
    {1, 1, 1, 1, 64},    {2, 7, 3, 3, 32},   {1, 130, 4, 2, 64}, {1, 64, 2, 1, 96},
    {1, 193, 2, 1, 128}, {2, 129, 3, 1, 64}, {1, 33, 6, 2, 128}, {1, 70, 2, 1, 64, false, {.scale = 0.2}}};
const std::vector<AttentionShape> kPlainShapes = {{1, 1, 1, 1, 2},
                                                  {2, 37, 4, 2, 5},
                                                  {1, 70, 3, 1, 40},
                                                  {1, 9, 2, 1, 144},
                                                  {1, 41, 2, 1, 64, false, {.scale = 0.3, .cap = 1.5}}};

class CudaAttention : public AttentionCase {
 protected:
  static constexpr std::size_t kSmall = 99 * 1024, kLarge = 163 * 1024;  // compute capabilities 8.6 and 8.9, and 8.0
  Forward forward(const AttentionShape& s, const Tensor& qkv, std::uint64_t schedule = 0, std::size_t shared_bytes = kLarge) {
    auto f = places(s, qkv.dtype());
    cuda::attention(EmulatedLauncher{&counts, schedule, shared_bytes}, s, f.out, f.lse, qkv);
    return f;
  }
  // Uses the CPU's forward, so that any error comes from the backward.
  Tensor backward(const AttentionShape& s, const Tensor& dout, const Forward& f, const Tensor& qkv, std::uint64_t schedule = 0,
                  std::size_t shared_bytes = kLarge) {
    Tensor dqkv(qkv.dtype(), qkv_shape(s));
    cuda::attention_grad(EmulatedLauncher{&counts, schedule, shared_bytes}, s, dqkv, dout, f.out, f.lse, qkv);
    return dqkv;
  }
};

TEST_F(CudaAttention, ForwardEqualsTheOracleAndTheCpu) {
  const auto check = [&](const AttentionShape& s, DType dtype) {
    SCOPED_TRACE(text(s, dtype));
    const auto qkv = random(dtype, qkv_shape(s), -2, 2);
    const AttentionOracle want(s, qkv.values(), {});
    const auto got = forward(s, qkv);
    expect_near(got.out, want.out, tolerance(dtype), "out");
    expect_near(got.lse, want.lse, tolerance(accumulator(dtype)), "lse");

    const auto cpu = cpu_forward(s, qkv);
    expect_near(got.out, cpu.out.values(), 2 * tolerance(dtype), "out beside the CPU's");
    expect_near(got.lse, cpu.lse.values(), 2 * tolerance(accumulator(dtype)), "lse beside the CPU's");
  };
  for (const auto& s : kShapes) check(s, DType::bf16);
  EXPECT_GT(counts.matrix_products, 0);
  EXPECT_EQ(counts.bank_conflicts, 0);
  for (const auto& s : kPlainShapes) {
    for (const auto dtype : kDtypes) check(s, dtype);
  }
  check(kShapes[2], DType::fp32);
}

TEST_F(CudaAttention, ForwardBitsDependOnNothingElse) {
  for (const auto dtype : kDtypes) {
    const AttentionShape s{1, 200, 2, 1, 64};
    const auto qkv = random(dtype, qkv_shape(s), -2, 2);
    const auto first = forward(s, qkv);
    for (const std::uint64_t schedule : {std::uint64_t{0}, std::uint64_t{1}, seed | 2}) {
      const auto again = forward(s, qkv, schedule);
      EXPECT_EQ(first.out.bits(), again.out.bits()) << "schedule " << schedule;
      EXPECT_EQ(first.lse.bits(), again.lse.bits()) << "schedule " << schedule;
    }
  }
}

// Scores of some hundreds: without subtracting the maximum, exp() would overflow; a late maximum must rescale the earlier sums.
TEST_F(CudaAttention, ForwardKeepsLargeScores) {
  const AttentionShape s{1, 150, 1, 1, 64};
  auto qkv = random(DType::bf16, qkv_shape(s), -8, 8);
  for (std::int64_t d = 0; d < 64; ++d) {
    for (const std::int64_t t : {70, 140}) qkv.set(t * 192 + 64 + d, 8 * (d % 2 == 0 ? 1 : -1) * (t == 140 ? 2 : 1));
    qkv.set(149 * 192 + d, d % 2 == 0 ? 8 : -8);
  }
  const AttentionOracle want(s, qkv.values(), {});
  const auto got = forward(s, qkv);
  expect_near(got.out, want.out, tolerance(DType::bf16), "out");
  expect_near(got.lse, want.lse, tolerance(DType::fp32), "lse");
}

TEST_F(CudaAttention, BackwardEqualsTheOracleAndTheCpu) {
  const auto check = [&](const AttentionShape& s, DType dtype) {
    SCOPED_TRACE(text(s, dtype));
    const auto qkv = random(dtype, qkv_shape(s), -2, 2), dout = random(dtype, {s.batch * s.seq, s.heads * s.head_dim}, -2, 2);
    const auto f = cpu_forward(s, qkv);
    const AttentionOracle want(s, qkv.values(), dout.values());
    const auto got = backward(s, dout, f, qkv);
    expect_near_parts(s, got, want.dqkv, 2 * tolerance(dtype), "");

    Tensor cpu(dtype, qkv_shape(s));
    math.attention_grad(stream, s, cpu, dout, f.out, f.lse, qkv);
    machine.sync();
    expect_near_parts(s, got, cpu.values(), 3 * tolerance(dtype), " beside the CPU's");
  };
  for (const auto& s : kShapes) check(s, DType::bf16);
  EXPECT_GT(counts.matrix_products, 0);
  EXPECT_EQ(counts.bank_conflicts, 0);
  for (const auto& s : kPlainShapes) {
    for (const auto dtype : kDtypes) check(s, dtype);
  }
}

TEST_F(CudaAttention, BackwardBitsDependOnNothingElse) {
  for (const auto& [s, dtype] :
       {std::pair{AttentionShape{1, 150, 4, 2, 64}, DType::bf16}, std::pair{AttentionShape{1, 140, 2, 1, 128}, DType::bf16},
        std::pair{AttentionShape{2, 40, 2, 1, 24}, DType::fp32}}) {
    const auto qkv = random(dtype, qkv_shape(s), -2, 2), dout = random(dtype, {s.batch * s.seq, s.heads * s.head_dim}, -2, 2);
    const auto f = cpu_forward(s, qkv);
    const auto first = backward(s, dout, f, qkv);
    for (const std::uint64_t schedule : {std::uint64_t{0}, std::uint64_t{1}, seed | 2}) {
      EXPECT_EQ(first.bits(), backward(s, dout, f, qkv, schedule).bits()) << text(s, dtype) << ", schedule " << schedule;
    }
  }
}

// A multiprocessor with 100 KiB, of which the driver takes 1 KiB per block, holds two blocks of every kernel; the bits are the
// same.
TEST_F(CudaAttention, SmallTilesGiveTheBitsOfLargeOnes) {
  std::size_t most_of_large = 0, most_of_small = 0;
  const auto launches = [&](std::size_t& most, const auto& run) {
    counts.most_shared_bytes = 0;
    const auto result = run();
    most = std::max(most, counts.most_shared_bytes);
    return result;
  };
  auto shapes = kShapes;
  shapes.push_back({1, 100, 2, 1, 32});
  for (const auto& s : shapes) {
    SCOPED_TRACE(text(s, DType::bf16));
    const auto qkv = random(DType::bf16, qkv_shape(s), -2, 2);
    const auto dout = random(DType::bf16, {s.batch * s.seq, s.heads * s.head_dim}, -2, 2);
    for (const std::uint64_t schedule : {std::uint64_t{0}, std::uint64_t{1}, seed | 2}) {
      const auto large = launches(most_of_large, [&] { return forward(s, qkv, schedule); });
      const auto small = launches(most_of_small, [&] { return forward(s, qkv, schedule, kSmall); });
      EXPECT_TRUE(large.out.bits() == small.out.bits()) << "schedule " << schedule;
      EXPECT_TRUE(large.lse.bits() == small.lse.bits()) << "schedule " << schedule;
      const auto gradient = launches(most_of_large, [&] { return backward(s, dout, large, qkv, schedule); });
      const auto of_small = launches(most_of_small, [&] { return backward(s, dout, large, qkv, schedule, kSmall); });
      EXPECT_TRUE(gradient.bits() == of_small.bits()) << "schedule " << schedule;
    }
  }
  EXPECT_LE(2 * (most_of_small + 1024), 100U * 1024);
  EXPECT_LE(2 * (most_of_large + 1024), 164U * 1024);
  EXPECT_GT(2 * (most_of_large + 1024), 100U * 1024) << "then nothing needs small tiles";
  EXPECT_EQ(counts.bank_conflicts, 0);
}

// The last position of a long, wide sequence is more than 2^31 elements away, so no offset may be an int.
TEST_F(CudaAttention, OffsetsAreWide) {
  cuda::AttentionArgs<bf16> args;
  args.seq = 1 << 17, args.heads = 128, args.kv_heads = 8, args.head_dim = 128;
  const std::int64_t n = 3 * (std::int64_t{1} << 17) - 1;
  EXPECT_EQ(args.q_at(2, args.seq - 1, 127), n * 144 * 128 + 127 * 128);
  EXPECT_EQ(args.k_at(2, args.seq - 1, 7), n * 144 * 128 + 135 * 128);
  EXPECT_EQ(args.v_at(2, args.seq - 1, 7), n * 144 * 128 + 143 * 128);
  EXPECT_EQ(args.out_at(2, args.seq - 1, 127), n * 128 * 128 + 127 * 128);
  EXPECT_EQ(args.lse_at(2, args.seq - 1, 127), (std::int64_t{2} * 128 + 127) * args.seq + args.seq - 1);
}

TEST_F(CudaAttention, MisalignedTensorsAreRefused) {
  const AttentionShape s{1, 4, 1, 1, 64};
  const Tensor qkv(DType::bf16, qkv_shape(s), 1);
  const auto f = places(s, DType::bf16);
  EXPECT_THROW(cuda::attention(EmulatedLauncher{&counts}, s, f.out, f.lse, qkv), std::logic_error);
}

TEST_F(CudaAttention, DecodeEqualsTheOracle) {
  for (const auto dtype : kDtypes) {
    for (const auto& [s, capacity] :
         {std::pair{AttentionShape{1, 1, 2, 1, 8}, 4}, std::pair{AttentionShape{1, 77, 4, 2, 64}, 77},
          std::pair{AttentionShape{1, 300, 6, 3, 20}, 512}}) {
      SCOPED_TRACE(text(s, dtype));
      const auto qkv = random(dtype, qkv_shape(s), -2, 2);
      const AttentionOracle want(s, qkv.values(), {});
      const std::int64_t width = s.heads * s.head_dim, row = width + 2 * s.kv_heads * s.head_dim;
      Tensor q(dtype, {1, width}), out(dtype, {1, width});
      for (std::int64_t i = 0; i < width; ++i) q.set(i, qkv.get((s.seq - 1) * row + i));
      Tensor keys(dtype, {s.kv_heads, capacity, s.head_dim}), values(dtype, {s.kv_heads, capacity, s.head_dim});
      for (std::int64_t g = 0; g < s.kv_heads; ++g) {
        for (std::int64_t t = 0; t < s.seq; ++t) {
          for (std::int64_t d = 0; d < s.head_dim; ++d) {
            const std::int64_t at = (g * capacity + t) * s.head_dim + d, from = t * row + width + g * s.head_dim + d;
            keys.set(at, qkv.get(from));
            values.set(at, qkv.get(from + s.kv_heads * s.head_dim));
          }
        }
      }
      cuda::attention_decode(EmulatedLauncher{&counts}, s, out, q, keys, values, s.seq);
      expect_near(out, {want.out.end() - width, want.out.end()}, tolerance(dtype), "out");
    }
  }
}

}  // namespace
}  // namespace terrace::test
