// The loops that measure a limit move exactly the bytes that are counted, and change what an update changes.
#include <terrace/bench/compute/stream_kernels.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include <string>
#include <vector>

namespace terrace::bench {
namespace {

constexpr std::size_t kCount = 4096, kBegin = 256;

class Stream : public testing::Test {
 protected:
  Stream() : floats_(4, std::vector<float>(2 * kCount)), in_(2 * kCount, 0x3F80), out_(2 * kCount) {  // 0x3F80: 1 in bf16
    for (std::size_t a = 0; a < 4; ++a)
      for (std::size_t i = 0; i < 2 * kCount; ++i) floats_[a][i] = 0.001F * static_cast<float>(1 + a * 3 + i % 7);
  }
  StreamArrays arrays() {
    return {.a = floats_[0].data(),
            .b = floats_[1].data(),
            .c = floats_[2].data(),
            .d = floats_[3].data(),
            .half_in = in_.data(),
            .half_out = out_.data()};
  }
  // Compares the elements in [kBegin, kBegin + kCount) with `expected`; all others must be unchanged.
  template <class Expected>
  void expect(std::size_t array, const std::vector<std::vector<float>>& before, const Expected& expected) const {
    for (std::size_t i = 0; i < 2 * kCount; ++i) {
      const bool inside = i >= kBegin && i < kBegin + kCount;
      ASSERT_FLOAT_EQ(inside ? expected(i) : before[array][i], floats_[array][i]) << "array " << array << ", element " << i;
    }
  }

  std::vector<std::vector<float>> floats_;
  std::vector<std::uint16_t> in_, out_;
};

const StreamKernel& named(const std::string& name) {
  for (const auto& kernel : stream_kernels())
    if (kernel.name == name) return kernel;
  throw std::runtime_error("no kernel " + name);
}

TEST_F(Stream, PlainKernelsDoWhatTheyAreCalled) {
  const auto x = floats_;
  named("read").run(arrays(), kBegin, kCount);
  EXPECT_EQ(x, floats_);
  for (const auto* const name : {"copy", "copy_nt"}) {
    floats_ = x;
    named(name).run(arrays(), kBegin, kCount);
    expect(0, x, [&](std::size_t i) { return x[1][i]; });
  }
  floats_ = x;
  named("triad").run(arrays(), kBegin, kCount);
  expect(0, x, [&](std::size_t i) { return x[1][i] + 0.5F * x[2][i]; });
  named("write").run(arrays(), kBegin, kCount);
  expect(0, x, [](std::size_t) { return 0.5F; });
}

TEST_F(Stream, AnUpdatesTrafficWritesWeightsAndMoments) {
  const auto x = floats_;
  for (const bool half_gradient : {false, true}) {
    for (const bool half_copy : {false, true}) {
      floats_ = x;
      const auto& kernel = adamw_stream(half_gradient, half_copy);
      EXPECT_EQ(half_gradient ? 14 : 16, kernel.read_bytes);
      EXPECT_EQ(half_copy ? 14 : 12, kernel.write_bytes);
      kernel.run(arrays(), kBegin, kCount);
      const auto g = [&](std::size_t i) { return half_gradient ? 1.0F : x[1][i]; };
      const auto m = [&](std::size_t i) { return 0.9F * x[2][i] + 0.1F * g(i); };
      const auto v = [&](std::size_t i) { return 0.99F * x[3][i] + 0.01F * g(i) * g(i); };
      expect(2, x, m);
      expect(3, x, v);
      expect(0, x, [&](std::size_t i) { return x[0][i] - 1e-3F * m(i) * (1.0F - v(i)); });
      EXPECT_EQ(x[1], floats_[1]);
      EXPECT_EQ(half_copy, out_[kBegin] != 0) << kernel.name;
      std::fill(out_.begin(), out_.end(), std::uint16_t{0});
    }
  }
}

}  // namespace
}  // namespace terrace::bench
