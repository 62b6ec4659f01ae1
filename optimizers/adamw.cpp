// AdamW (Loshchilov, Hutter: "Decoupled weight decay regularization", ICLR 2019) on host memory.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/optimizers/adamw_kernels.h>
#include <terrace/optimizers/optimizer.h>

namespace terrace {
namespace {

// Elements a task takes: 256 KiB a span of fp32, large enough to hide a task's cost, small enough to even out two threads.
constexpr std::int64_t kBlockElements = 65536;

[[noreturn]] void refuse(const std::string& what) { throw Error("adamw: " + what, Exit::usage); }

void require_in(const char* name, double value, bool in_range, const char* range) {
  if (!in_range) refuse(fmt::format("{} is {}; it must be {}", name, value, range));
}

template <class A>
adamw::Factors<A> factors_of(const AdamWSettings& s, const UpdateStep& step, bool decay) {
  const auto t = static_cast<double>(step.step);
  const double correction1 = 1.0 - std::pow(s.beta1, t);
  const double correction2 = 1.0 - std::pow(s.beta2, t);
  return {.gradient_scale = static_cast<A>(step.gradient_scale),
          .decay = static_cast<A>(decay ? 1.0 - step.learning_rate * s.weight_decay : 1.0),
          .one_minus_beta1 = static_cast<A>(1.0 - s.beta1),
          .beta2 = static_cast<A>(s.beta2),
          .one_minus_beta2 = static_cast<A>(1.0 - s.beta2),
          .inverse_root = static_cast<A>(1.0 / std::sqrt(correction2)),
          .eps = static_cast<A>(s.eps),
          .step_size = static_cast<A>(step.learning_rate / correction1)};
}

void require_span(const char* name, const TensorView& view, DType dtype, std::int64_t elements) {
  if (view.dtype != dtype || view.shape.rank() != 1 || view.elements() != elements) {
    refuse(fmt::format("the {} is {} {}, where the weight asks for {} [{}]", name, name_of(view.dtype), to_string(view.shape),
                       name_of(dtype), elements));
  }
  if (view.data == nullptr && elements > 0) refuse(fmt::format("the {} is missing", name));
}

void check(const UpdateStep& step, const UpdateSpans& spans) {
  if (step.step == 0) refuse("steps count from 1");
  require_in("the learning rate", step.learning_rate, std::isfinite(step.learning_rate) && step.learning_rate >= 0,
             "finite and not negative");
  require_in("the gradient scale", step.gradient_scale, std::isfinite(step.gradient_scale), "finite");
  const DType dtype = spans.weight.dtype;
  const std::int64_t n = spans.weight.elements();
  if (dtype != DType::fp32 && dtype != DType::fp64) {
    refuse(fmt::format("the weight is {}; it must be fp32 or fp64 (a bf16 weight is the compute copy of an fp32 master)",
                       name_of(dtype)));
  }
  require_span("weight", spans.weight, dtype, n);
  const bool bf16_gradient = dtype == DType::fp32 && spans.gradient.dtype == DType::bf16;
  require_span("gradient", spans.gradient, bf16_gradient ? DType::bf16 : dtype, n);
  require_span("first moment", spans.first_moment, dtype, n);
  require_span("second moment", spans.second_moment, dtype, n);
  if (!spans.compute.empty()) {
    if (dtype != DType::fp32) refuse("a bf16 compute weight goes with an fp32 master only");
    require_span("compute weight", spans.compute, DType::bf16, n);
  }
}

template <class W, class G>
void run(ThreadPool& pool, void (*kernel)(const adamw::Elements<W, G>&, const adamw::Factors<W>&), const UpdateSpans& spans,
         const adamw::Factors<W>& factors, bool first) {
  const auto at = [](const TensorView& view, auto* type, std::int64_t i) {
    return view.data == nullptr ? nullptr : reinterpret_cast<decltype(type)>(view.data) + i;
  };
  const std::int64_t count = spans.weight.elements();
  const auto block = [&](std::int64_t b) {
    const std::int64_t begin = b * kBlockElements;
    kernel({.weight = at(spans.weight, static_cast<W*>(nullptr), begin),
            .compute = at(spans.compute, static_cast<std::uint16_t*>(nullptr), begin),
            .gradient = at(spans.gradient, static_cast<const G*>(nullptr), begin),
            .first_moment = at(spans.first_moment, static_cast<W*>(nullptr), begin),
            .second_moment = at(spans.second_moment, static_cast<W*>(nullptr), begin),
            .count = std::min(kBlockElements, count - begin),
            .first = first},
           factors);
  };
  const std::int64_t blocks = (count + kBlockElements - 1) / kBlockElements;
  if (blocks == 1) {
    block(0);
  } else {
    pool.parallel_for(blocks, block);
  }
}

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const AdamWSettings& settings) : settings_(settings), kernels_(adamw::select_kernels()) {
    const auto beta_is_valid = [](double beta) { return beta >= 0 && static_cast<float>(beta) < 1.0F; };
    require_in("beta1", settings.beta1, beta_is_valid(settings.beta1), "at least 0 and, as fp32, below 1");
    require_in("beta2", settings.beta2, beta_is_valid(settings.beta2), "at least 0 and, as fp32, below 1");
    // An eps that is zero in fp32 would make 0/0 of every weight that never had a gradient.
    require_in("eps", settings.eps, std::isfinite(settings.eps) && settings.eps >= std::numeric_limits<float>::min(),
               "finite and at least 1.2e-38 (the smallest normal fp32)");
    require_in("the weight decay", settings.weight_decay, std::isfinite(settings.weight_decay) && settings.weight_decay >= 0,
               "finite and not negative");
  }

  [[nodiscard]] std::string name() const override { return "adamw"; }
  [[nodiscard]] std::vector<Kind> states() const override { return {Kind::first_moment, Kind::second_moment}; }

  void update(ThreadPool& pool, const UpdateStep& step, const UpdateSpans& spans) const override {
    check(step, spans);
    if (spans.weight.elements() == 0) return;
    if (spans.weight.dtype == DType::fp64) {
      run<double, double>(pool, kernels_.fp64, spans, factors_of<double>(settings_, step, spans.decay), step.first);
      return;
    }
    const auto factors = factors_of<float>(settings_, step, spans.decay);
    if (spans.gradient.dtype == DType::bf16) {
      run<float, std::uint16_t>(pool, kernels_.fp32_bf16_gradient, spans, factors, step.first);
    } else {
      run<float, float>(pool, kernels_.fp32, spans, factors, step.first);
    }
  }

 private:
  AdamWSettings settings_;
  const adamw::Kernels& kernels_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const AdamWSettings& settings) { return std::make_unique<AdamW>(settings); }

}  // namespace terrace
