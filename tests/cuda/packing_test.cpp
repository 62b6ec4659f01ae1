// Data that is sent in fewer bytes: kernels pack and unpack it with the CPU's bits, into other memory and in place. (fold_test
// has the oracle of the specification.)
#include <terrace/core/cuda/math/packing.h>
#include <terrace/core/math/block8.h>

#include <terrace/tests/cuda/kernel_case.h>

namespace terrace::test {
namespace {

class PackingTest : public KernelTest {
 protected:
  // Ordinary blocks, then one block each of zeros and tiny numbers, and one each with an infinity and a NaN.
  Tensor numbers(DType dtype, std::int64_t blocks) {
    auto x = random(dtype, {blocks * math::kBlock8Elements}, -3, 3);
    const auto fill = [&](std::int64_t block, double value) {
      for (std::int64_t i = 0; block >= 0 && i < math::kBlock8Elements; ++i) x.set(block * math::kBlock8Elements + i, value);
    };
    if (blocks < 6) return x;
    fill(blocks - 1, 0);
    fill(blocks - 2, 1e-37);
    x.set((blocks - 3) * math::kBlock8Elements + 7, std::numeric_limits<double>::infinity());
    x.set((blocks - 4) * math::kBlock8Elements + 255, std::numeric_limits<double>::quiet_NaN());
    return x;
  }
  static TensorView packed(std::byte* at, std::int64_t blocks) { return {at, DType::i32, {blocks, math::kBlock8Words}}; }
  // The bytes of `x` as 32-bit words: the memory for packing and unpacking in place.
  static Tensor words(const Tensor& x) {
    Tensor w(DType::i32, {static_cast<std::int64_t>(x.bytes() / sizeof(std::int32_t))});
    if (x.bytes() > 0) std::memcpy(w.data(), x.data(), x.bytes());
    return w;
  }
  static std::string text(const char* name, DType dtype, std::int64_t blocks) {
    return std::string(name) + " " + std::string(name_of(dtype)) + ", " + std::to_string(blocks) + " blocks";
  }
  template <class F>
  static void for_each(F&& f) {
    for (const auto dtype : {DType::fp32, DType::bf16})
      for (const std::int64_t blocks : {0, 1, 2, 3, 9, 70}) f(dtype, blocks);
  }
};

TEST_F(PackingTest, BlocksApartHaveTheCpusBits) {
  for_each([&](DType dtype, std::int64_t blocks) {
    const auto x = numbers(dtype, blocks);
    expect_as_on_the_cpu({.name = text("packed", dtype, blocks),
                          .in = {words(x)},
                          .out = {Tensor(DType::i32, {blocks, math::kBlock8Words})},
                          .run = [=](Math& m, Stream& s, const auto& in, const auto& out) {
                            m.pack_block8(s, out[0], {in[0].data, dtype, {blocks * math::kBlock8Elements}});
                          }});
    Tensor blocks_of_x(DType::i32, {blocks, math::kBlock8Words});
    math::pack_block8(blocks_of_x.data(), dtype, x.data(), blocks);
    expect_as_on_the_cpu(
        {.name = text("unpacked", dtype, blocks),
         .in = {blocks_of_x},
         .out = {Tensor(dtype, {blocks * math::kBlock8Elements})},
         .run = [=](Math& m, Stream& s, const auto& in, const auto& out) { m.unpack_block8(s, out[0], in[0]); }});
  });
}

TEST_F(PackingTest, BlocksInPlaceHaveTheCpusBits) {
  for_each([&](DType dtype, std::int64_t blocks) {
    const auto x = numbers(dtype, blocks);
    const Shape shape{blocks * math::kBlock8Elements};
    expect_as_on_the_cpu({.name = text("packed in place", dtype, blocks),
                          .in = {},
                          .out = {words(x)},
                          .run = [=](Math& m, Stream& s, const auto&, const auto& out) {
                            m.pack_block8(s, packed(out[0].data, blocks), {out[0].data, dtype, shape});
                          }});
    Tensor memory = words(x);
    std::byte* const end = memory.data() + memory.bytes();
    math::pack_block8(end - packed(nullptr, blocks).bytes(), dtype, x.data(), blocks);
    expect_as_on_the_cpu({.name = text("unpacked in place", dtype, blocks),
                          .in = {},
                          .out = {memory},
                          .run = [=](Math& m, Stream& s, const auto&, const auto& out) {
                            auto from = packed(nullptr, blocks);
                            from.data = out[0].data + out[0].bytes() - from.bytes();
                            m.unpack_block8(s, {out[0].data, dtype, shape}, from);
                          }});
  });
}

TEST_F(PackingTest, NarrowedInPlaceHaveTheCpusBits) {
  for (const std::int64_t n : {0, 1, 2, 1023, 1024, 1025, 5000, 40'000})
    expect_as_on_the_cpu({.name = "narrowed, " + std::to_string(n),
                          .in = {},
                          .out = {random(DType::fp32, {n}, -3, 3)},
                          .run = [](Math& m, Stream& s, const auto&, const auto& out) { m.narrow_in_place(s, out[0]); }});
}

TEST_F(PackingTest, OverlapsThatWouldLoseNumbersAreRefused) {
  Tensor x(DType::fp32, {4 * math::kBlock8Elements});
  std::byte* const at = x.view().data;
  EXPECT_THROW(gpu.math.pack_block8(*gpu.stream, packed(at + 260, 4), x), std::logic_error);
  EXPECT_THROW(gpu.math.unpack_block8(*gpu.stream, x, packed(at, 4)), std::logic_error);
  EXPECT_THROW(gpu.math.pack_block8(*gpu.stream, packed(at, 3), x), std::logic_error);
}

// The waves cover all pieces once, in order, and no wave overwrites a piece that is still to be read.
TEST(Waves, WriteOnlyWhereTheyHaveRead) {
  using cuda::Wave;
  struct Range {
    std::int64_t begin, end;
    [[nodiscard]] bool meets(const Range& r) const { return begin < r.end && r.begin < end; }
  };
  for (const auto& [wide, narrow] : std::vector<std::pair<std::int64_t, std::int64_t>>{{1024, 260}, {512, 260}, {4096, 2048}})
    for (std::int64_t count = 0; count < 90; ++count) {
      SCOPED_TRACE(testing::Message() << count << " pieces, " << wide << " to " << narrow);
      const auto piece = [](std::int64_t i, std::int64_t bytes) { return Range{i * bytes, (i + 1) * bytes}; };
      const auto packed_at_end = [&](std::int64_t i) {
        const auto r = piece(i, narrow);
        return Range{r.begin + count * (wide - narrow), r.end + count * (wide - narrow)};
      };
      const auto check = [&](const std::vector<Wave>& waves, auto read, auto written) {
        std::int64_t next = 0;
        for (const auto& wave : waves) {
          ASSERT_EQ(next, wave.begin);
          ASSERT_LT(wave.begin, wave.end);
          next = wave.end;
          for (auto i = wave.begin; i < wave.end; ++i)
            for (auto j = wave.begin; j < count; ++j)
              ASSERT_TRUE(i == j || !written(i).meets(read(j))) << "piece " << i << " is written over piece " << j;
        }
        EXPECT_EQ(next, count);
      };
      check(
          cuda::narrowing_waves(count, wide, narrow), [&](auto i) { return piece(i, wide); },
          [&](auto i) { return piece(i, narrow); });
      check(cuda::widening_waves(count, wide, narrow), packed_at_end, [&](auto i) { return piece(i, wide); });
    }
  EXPECT_LE(cuda::narrowing_waves(1 << 20, 1024, 260).size(), 12U);  // for 1 GiB
}

}  // namespace
}  // namespace terrace::test
