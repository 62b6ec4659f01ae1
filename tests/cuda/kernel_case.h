// One operation on given operands, run on the CPU device and on the test's GPU: what must be equal to the bit, what within
// the dtype's rounding.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <terrace/tests/math/math_fixture.h>

#include "test_gpu.h"

namespace terrace::test {

struct KernelCase {
  using Views = std::vector<TensorView>;

  std::string name;
  std::vector<Tensor> in;
  std::vector<Tensor> out;  // as they are before the call; poisoned where it overwrites
  std::function<void(Math&, Stream&, const Views& in, const Views& out)> run;
  double tolerance = 0;  // relative to the largest value, beside the CPU; 0: the same bits
};

// A copy of a tensor, some elements off its alignment, with poison behind its end.
class Guarded {
 public:
  Guarded(const Tensor& t, std::size_t shift)
      : shape_(t.view().shape), bytes_(t.view().bytes()), whole_(t.dtype(), {t.size() + kGuard}, shift) {
    std::memcpy(whole_.view().data, t.view().data, bytes_);
  }
  [[nodiscard]] TensorView view() const { return {whole_.view().data, whole_.dtype(), shape_}; }
  [[nodiscard]] std::string bits() const { return whole_.bits().substr(0, bytes_); }
  [[nodiscard]] bool is_intact() const {
    return whole_.bits().substr(bytes_) == Tensor(whole_.dtype(), {kGuard}).bits();  // poison, as at first
  }

 private:
  static constexpr std::int64_t kGuard = 24;
  Shape shape_;
  std::size_t bytes_;
  Tensor whole_;
};

class KernelTest : public MathTest {
 protected:
  struct Gpu {
    ThreadPool pool{2};
    std::unique_ptr<Device> device = make_test_gpu(pool);
    std::unique_ptr<Stream> stream = device->make_stream("test");
    Math& math = device->math();
  };

  // The outputs' bits, in order.
  std::vector<std::string> run(const KernelCase& c, Math& on, Stream& stream_on, std::size_t shift) {
    std::vector<Guarded> in, out;
    KernelCase::Views in_views, out_views;
    for (const auto& t : c.in) in.emplace_back(t, shift), in_views.push_back(in.back().view());
    for (const auto& t : c.out) out.emplace_back(t, shift), out_views.push_back(out.back().view());
    c.run(on, stream_on, in_views, out_views);
    stream_on.synchronize();
    std::vector<std::string> bits;
    for (std::size_t i = 0; i < in.size(); ++i) {
      EXPECT_TRUE(in[i].bits() == c.in[i].bits() && in[i].is_intact()) << c.name << ": operand " << i << " was written to";
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_TRUE(out[i].is_intact()) << c.name << ": result " << i << " was written behind its end";
      bits.push_back(out[i].bits());
    }
    return bits;
  }

  // The GPU twice and at other addresses: the same bits. Beside the CPU: as the case says.
  void expect_as_on_the_cpu(const KernelCase& c) {
    const auto want = run(c, math, stream, 0);
    const auto got = run(c, gpu.math, *gpu.stream, 0);
    for (const std::size_t shift : {0, 1, 3}) {
      EXPECT_TRUE(run(c, gpu.math, *gpu.stream, shift) == got) << c.name << ", " << shift << " elements off";
    }
    for (std::size_t i = 0; i < want.size(); ++i) {
      SCOPED_TRACE(c.name + ", result " + std::to_string(i));
      if (c.tolerance == 0) {
        EXPECT_TRUE(got[i] == want[i]) << "differs from the CPU's bits";
        continue;
      }
      Tensor g = c.out[i], w = c.out[i];
      std::memcpy(g.view().data, got[i].data(), got[i].size());
      std::memcpy(w.view().data, want[i].data(), want[i].size());
      expect_near(g, w.values(), c.tolerance, "beside the CPU");
    }
  }

  Gpu gpu;
};

}  // namespace terrace::test
