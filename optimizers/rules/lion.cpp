#include <terrace/optimizers/rules/lion.h>

#include <terrace/optimizers/loops/elementwise.h>

namespace terrace::rules {

std::unique_ptr<Optimizer> make_lion(const OptimizerSettings& settings, Isa isa) {
  return std::make_unique<elementwise::Elementwise<rules::Lion>>(settings, isa);
}

}  // namespace terrace::rules
