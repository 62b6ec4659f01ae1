// The CPU's math used like a GPU's: each operation is issued on its CUDA stream and runs later. The bytes that it reads and
// writes are reported to the fake runtime, which looks for operations without an order.
//
// A tensor counts as a whole, even if an operation only uses some of its rows or columns.
//
// Owner: as Math; the fake is shared. Threads: as Math. Errors: those of an operation become complaints of the fake.
#pragma once

#include <exception>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include <terrace/core/cuda/cuda_error.h>
#include <terrace/core/cuda/stream.h>
#include <terrace/core/math/math_call.h>
#include <terrace/tests/support/gpu/fake_cuda.h>
#include <terrace/tests/support/inline_stream.h>

namespace terrace::test {

class LaunchedMath final : public Math {
 public:
  // `greatest_product`: products with more multiplications are skipped.
  LaunchedMath(std::unique_ptr<Math> math, std::shared_ptr<FakeCuda> fake,
               double greatest_product = std::numeric_limits<double>::infinity())
      : math_(std::move(math)), fake_(std::move(fake)), greatest_product_(greatest_product) {}

  void enqueue(Stream& stream, const math::MathCall& some) override {
    math::visit(some, [&](const auto& call) { this->launch(stream, call); });
  }
  [[nodiscard]] std::string algorithms() const override { return math_->algorithms(); }

 private:
  template <class Call, class... Others>
  static constexpr bool kIsOneOf = (std::is_same_v<Call, Others> || ...);
  // Some numbers in the call's tensors, as a token outside the vocabulary, are refused when it runs.
  template <class Call>
  static constexpr bool kRefusesNumbers =
      kIsOneOf<Call, math::CallOf<&Math::embed>, math::CallOf<&Math::embed_grad>, math::CallOf<&Math::cross_entropy>,
               math::CallOf<&Math::merge_log_sums>, math::CallOf<&Math::cross_entropy_part>>;

  // A call whose tensors are at the addresses that the fake's kernels use.
  template <class Call>
  static Call reached(const Call& call, const FakeCuda& fake) {
    const auto at = [&](TensorView view) {
      view.data = fake.reach(view.data);
      return view;
    };
    return call.apply([&](const auto&... arguments) { return Call(with_tensors(arguments, at)...); });
  }
  template <class Argument, class F>
  static Argument with_tensors(Argument argument, const F& f) {
    if constexpr (std::is_same_v<Argument, TensorView>) argument = f(argument);
    if constexpr (std::is_same_v<Argument, MatrixView>) argument.view = f(argument.view);
    return argument;
  }

  template <class Call>
  static FakeCuda::Touched touched_by(const Call& call) {
    FakeCuda::Touched touched{.name = Call::kName};
    int tensors = 0;
    const auto add = [&](const TensorView& view) { touched.add(view.data, view.bytes(), tensors++ < Call::kOutputs); };
    const auto look_at = [&]<class Argument>(const Argument& argument) {
      if constexpr (std::is_same_v<Argument, TensorView>) add(argument);
      if constexpr (std::is_same_v<Argument, MatrixView>) add(argument.with_gaps());
    };
    call.apply([&](const auto&... arguments) { (look_at(arguments), ...); });
    return touched;
  }

  template <class Call>
  [[nodiscard]] bool skips(const Call&) const {
    return false;
  }
  [[nodiscard]] bool skips(const math::CallOf<&Math::matmul>& call) const {
    const auto& [c, a, ta, b, tb, bias, accumulate] = call.arguments;
    const auto inner = b.view.shape[tb == Transpose::no ? 0 : 1];
    return static_cast<double>(c.view.elements()) * static_cast<double>(inner) > greatest_product_;
  }

  [[nodiscard]] bool skips(const math::CallOf<&Math::matmul_float8>& call) const {
    const auto& [c, a, b, a_scale, b_scale, bias, accumulate] = call.arguments;
    return static_cast<double>(c.view.elements()) * static_cast<double>(a.shape[1]) > greatest_product_;
  }

  template <class Call>
  void launch(Stream& stream, const Call& call) {
    const auto refused = std::make_shared<std::exception_ptr>();
    cuda::cuda_stream(stream).launch([this, call, refused, touched = touched_by(call)](cuda::CudaStreamHandle handle) {
      const int code = fake_->launch_touching(handle, touched, [this, call, refused] {
        if (skips(call)) return;
        InlineStream here;
        try {
          math_->enqueue(here, reached(call, *fake_));
        } catch (const std::out_of_range&) {
          if (!kRefusesNumbers<Call>) throw;
          *refused = std::current_exception();
        }
      });
      if (code) throw cuda::CudaError(*fake_, code, "cuda:0", "cudaLaunchKernel");
    });
    // As on a GPU, the error comes after the operation.
    if constexpr (kRefusesNumbers<Call>) {
      cuda::cuda_stream(stream).expect([refused] {
        if (*refused) std::rethrow_exception(*refused);
      });
    }
  }

  const std::unique_ptr<Math> math_;
  const std::shared_ptr<FakeCuda> fake_;
  const double greatest_product_;
};

}  // namespace terrace::test
