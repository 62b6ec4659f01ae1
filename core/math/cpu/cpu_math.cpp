// Math on the CPU: each call is enqueued as a function of core/math/cpu/ops.h.
#include <terrace/core/math/cpu/ops.h>

namespace terrace {
namespace {

class CpuMath final : public Math {
 public:
  explicit CpuMath(ThreadPool& pool) : compute_{pool, cpu::select_kernels()} {}

  void enqueue(Stream& stream, const math::MathCall& some) override {
    math::visit(some, [&](const auto& call) { stream.submit([call, compute = compute_] { cpu::run(compute, call); }); });
  }

 private:
  cpu::Compute compute_;
};

}  // namespace

std::unique_ptr<Math> make_cpu_math(ThreadPool& pool) { return std::make_unique<CpuMath>(pool); }

}  // namespace terrace
