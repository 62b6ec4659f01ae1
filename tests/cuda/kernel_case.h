// One operation with given operands, run on the CPU device and on the test's GPU. The case says which results must be equal bit
// by bit, and which within the dtype's rounding.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <terrace/tests/math/math_fixture.h>

#include <terrace/tests/cuda/test_gpu.h>

namespace terrace::test {

struct KernelCase {
  using Views = std::vector<TensorView>;

  std::string name;
  std::vector<Tensor> in;
  std::vector<Tensor> out;  // their content before the call; poisoned if the operation overwrites
  std::function<void(Math&, Stream&, const Views& in, const Views& out)> run;
  double tolerance = 0;  // allowed difference from the CPU, relative to the largest value; 0: the same bits
};

// A copy of a tensor in device memory, some elements off its alignment, between guard zones.
class Guarded {
 public:
  Guarded(const Tensor& t, std::size_t shift, Device& device, Stream& stream)
      : type_{nullptr, t.dtype(), t.shape()},
        bytes_(t.bytes()),
        before_(kGuard + shift * size_of(t.dtype())),
        all_(before_ + bytes_ + kGuard),
        whole_(all_),
        slab_(device.computes_on_host() ? Slab() : device.memory().allocate(all_)) {
    std::memset(whole_.data(), kPoison, all_);
    if (bytes_ > 0) std::memcpy(whole_.data() + before_, t.data(), bytes_);
    copy(stream, slab_.data(), whole_.data());
  }
  [[nodiscard]] TensorView view() const {
    auto view = type_;
    if (bytes_ > 0) view.data = (slab_.data() ? slab_.data() : whole_.data()) + before_;
    return view;
  }
  // Reads back after all work of the stream.
  void read_back(Stream& stream) {
    stream.synchronize();
    copy(stream, whole_.data(), slab_.data());
  }
  [[nodiscard]] std::string bits() const { return {reinterpret_cast<const char*>(whole_.data()) + before_, bytes_}; }
  [[nodiscard]] bool is_intact() const {
    const auto is_poison = [](std::byte b) { return b == std::byte{kPoison}; };
    return std::all_of(whole_.data(), whole_.data() + before_, is_poison) &&
           std::all_of(whole_.data() + before_ + bytes_, whole_.data() + all_, is_poison);
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr unsigned char kPoison = 0xff;  // NaN
  void copy(Stream& stream, std::byte* to, const std::byte* from) const {
    if (slab_.data()) copy_of_test_gpu(stream, to, from, all_);
  }

  TensorView type_;
  std::size_t bytes_, before_, all_;
  TestBytes whole_;
  Slab slab_;
};

class KernelTest : public MathTest {
 protected:
  struct Gpu {
    ThreadPool pool{2};
    std::unique_ptr<Device> device = make_test_gpu(pool);
    std::unique_ptr<Stream> stream = device->make_stream("test");
    Math& math = device->math();
  };

  // The bits of the outputs, in order.
  static std::vector<std::string> run(const KernelCase& c, Device& on, Stream& stream_on, std::size_t shift) {
    std::vector<Guarded> in, out;
    KernelCase::Views in_views, out_views;
    for (const auto& t : c.in) in.emplace_back(t, shift, on, stream_on), in_views.push_back(in.back().view());
    for (const auto& t : c.out) out.emplace_back(t, shift, on, stream_on), out_views.push_back(out.back().view());
    c.run(on.math(), stream_on, in_views, out_views);
    for (auto* const all : {&in, &out})
      for (auto& one : *all) one.read_back(stream_on);
    std::vector<std::string> bits;
    for (std::size_t i = 0; i < in.size(); ++i) {
      EXPECT_TRUE(in[i].bits() == c.in[i].bits() && in[i].is_intact()) << c.name << ": operand " << i << " was written to";
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_TRUE(out[i].is_intact()) << c.name << ": result " << i << " was written beside its place";
      bits.push_back(out[i].bits());
    }
    return bits;
  }

  // Runs the case on the GPU twice, at different addresses: the bits must be equal. Compares with the CPU as the case says.
  void expect_as_on_the_cpu(const KernelCase& c) {
    const auto want = run(c, *machine.device, stream, 0);
    const auto got = run(c, *gpu.device, *gpu.stream, 0);
    for (const std::size_t shift : {0, 1, 3}) {
      EXPECT_TRUE(run(c, *gpu.device, *gpu.stream, shift) == got) << c.name << ", " << shift << " elements off";
    }
    for (std::size_t i = 0; i < want.size(); ++i) {
      SCOPED_TRACE(c.name + ", result " + std::to_string(i));
      if (c.tolerance == 0) {
        EXPECT_TRUE(got[i] == want[i]) << "differs from the CPU's bits";
        continue;
      }
      Tensor g = c.out[i], w = c.out[i];
      std::ranges::copy(std::as_bytes(std::span(got[i])), g.data());
      std::ranges::copy(std::as_bytes(std::span(want[i])), w.data());
      expect_near(g, w.values(), c.tolerance, "beside the CPU");
    }
  }

  Gpu gpu;
};

}  // namespace terrace::test
