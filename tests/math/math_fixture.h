// Shared by the math tests: a device, tensors that own their bytes, seeds, comparison with oracles, central differences.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/math/float8.h>
#include <terrace/core/math/math.h>
#include <terrace/tests/support/environment.h>
#include <terrace/tests/support/mirrored_bytes.h>
#include <terrace/tests/support/program_device.h>

namespace terrace::test {

class Tensor {
 public:
  Tensor() = default;
  // `shift` elements before the first one move it off its alignment.
  Tensor(DType dtype, Shape shape, std::size_t shift = 0) : dtype_(dtype), shape_(shape), shift_(shift * size_of(dtype)) {
    bytes_ = MirroredBytes(bytes() + shift_);
    poison();
  }
  // For operations on the device.
  [[nodiscard]] TensorView view() const { return {shifted(bytes_.on_device()), dtype_, shape_}; }
  operator TensorView() const { return view(); }
  // For the test on the host.
  [[nodiscard]] const std::byte* data() const { return shifted(bytes_.read()); }
  [[nodiscard]] std::byte* data() { return shifted(bytes_.write()); }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype_); }
  [[nodiscard]] std::int64_t size() const { return shape_.elements(); }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }

  [[nodiscard]] double get(std::int64_t i) const {
    const std::byte* const from = data();
    switch (dtype_) {
      case DType::fp32: return reinterpret_cast<const float*>(from)[i];
      case DType::bf16: return static_cast<float>(reinterpret_cast<const bf16*>(from)[i]);
      case DType::fp64: return reinterpret_cast<const double*>(from)[i];
      case DType::fp16: return static_cast<float>(reinterpret_cast<const fp16*>(from)[i]);
      case DType::i32: return reinterpret_cast<const std::int32_t*>(from)[i];
      case DType::e4m3:
      case DType::e5m2: return math::float8_value(static_cast<std::uint8_t>(from[i]), math::float8_format(dtype_));
    }
    return 0;
  }
  void set(std::int64_t i, double v) {
    std::byte* const to = data();
    switch (dtype_) {
      case DType::fp32: reinterpret_cast<float*>(to)[i] = static_cast<float>(v); break;
      case DType::bf16: reinterpret_cast<bf16*>(to)[i] = bf16(static_cast<float>(v)); break;
      case DType::fp64: reinterpret_cast<double*>(to)[i] = v; break;
      case DType::fp16: reinterpret_cast<fp16*>(to)[i] = fp16(static_cast<float>(v)); break;
      case DType::i32: reinterpret_cast<std::int32_t*>(to)[i] = static_cast<std::int32_t>(v); break;
      case DType::e4m3:
      case DType::e5m2: to[i] = std::byte{math::float8_code(static_cast<float>(v), math::float8_format(dtype_))}; break;
    }
  }
  Tensor& poison() {
    for (std::int64_t i = 0; i < size(); ++i) set(i, dtype_ == DType::i32 ? -7 : std::numeric_limits<double>::quiet_NaN());
    return *this;
  }
  Tensor& random(std::mt19937_64& generator, double low = -1, double high = 1) {
    std::uniform_real_distribution<double> draw(low, high);
    for (std::int64_t i = 0; i < size(); ++i) set(i, dtype_ == DType::i32 ? std::floor(draw(generator)) : draw(generator));
    return *this;
  }
  [[nodiscard]] std::vector<double> values() const {
    std::vector<double> v(static_cast<std::size_t>(size()));
    for (std::int64_t i = 0; i < size(); ++i) v[static_cast<std::size_t>(i)] = get(i);
    return v;
  }
  [[nodiscard]] std::string bits() const { return {reinterpret_cast<const char*>(data()), bytes()}; }

 private:
  [[nodiscard]] std::byte* shifted(std::byte* bytes) const { return bytes ? bytes + shift_ : nullptr; }

  DType dtype_ = DType::fp32;
  Shape shape_;
  std::size_t shift_ = 0;
  MirroredBytes bytes_;
};

inline DType accumulator(DType dtype) { return dtype == DType::fp64 ? DType::fp64 : DType::fp32; }
// The allowed error of one rounding of the result and an fp32 sum, relative to the largest value.
inline double tolerance(DType dtype) {
  switch (dtype) {
    case DType::fp64: return 1e-12;
    case DType::fp32: return 1e-5;
    case DType::fp16: return 1e-3;
    default: return 6e-3;
  }
}

inline void expect_near(const Tensor& got, const std::vector<double>& want, double relative, const char* what) {
  ASSERT_EQ(static_cast<std::size_t>(got.size()), want.size()) << what;
  double largest = 1e-2;  // at least this, because a single tiny value is a sum of terms of order 1
  for (const double w : want) largest = std::max(largest, std::abs(w));
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double value = got.get(static_cast<std::int64_t>(i));
    ASSERT_LE(std::abs(value - want[i]), relative * largest)
        << what << " at " << i << ": got " << value << ", want " << want[i] << ", dtype " << name_of(got.dtype());
  }
}

// A separate device for each number of threads.
struct Machine {
  explicit Machine(int threads = 2)
      : pool(threads), device(make_test_device(pool)), stream(device->make_stream("test")), math(device->math()) {}
  void sync() {
    stream->synchronize();
    ++test_waits;
  }

  ThreadPool pool;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  Math& math;
};

class MathTest : public testing::Test {
 protected:
  MathTest() : seed(test_seed()), generator(seed), trace(__FILE__, __LINE__, "TERRACE_TEST_SEED=" + std::to_string(seed)) {}

  void SetUp() override {
    if (!test_skip_reason.empty()) GTEST_SKIP() << test_skip_reason;
  }

  Tensor random(DType dtype, Shape shape, double low = -1, double high = 1) {
    Tensor t(dtype, shape);
    t.random(generator, low, high);
    return t;
  }

  // Compares `gradient` with central differences of the loss for every element of `input`.
  void expect_gradient(Tensor& input, const Tensor& gradient, const std::function<double()>& loss, const char* what) {
    std::vector<double> want;
    for (std::int64_t i = 0; i < input.size(); ++i) {
      const double x = input.get(i), h = 1e-5;
      input.set(i, x + h);
      const double up = loss();
      input.set(i, x - h);
      const double down = loss();
      input.set(i, x);
      want.push_back((up - down) / (2 * h));
    }
    expect_near(gradient, want, 1e-7, what);
  }
  static double weighted(const Tensor& weights, const Tensor& y) {
    double total = 0;
    for (std::int64_t i = 0; i < y.size(); ++i) total += weights.get(i) * y.get(i);
    return total;
  }

  std::uint64_t seed;
  std::mt19937_64 generator;
  testing::ScopedTrace trace;
  Machine machine;
  Math& math = machine.math;
  Stream& stream = *machine.stream;
};

constexpr DType kDtypes[] = {DType::fp32, DType::bf16, DType::fp64, DType::fp16};

}  // namespace terrace::test
