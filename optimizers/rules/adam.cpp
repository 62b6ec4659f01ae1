#include <terrace/optimizers/rules/adam.h>

#include <terrace/optimizers/loops/elementwise.h>

namespace terrace::rules {

std::unique_ptr<Optimizer> make_adam(const OptimizerSettings& settings, Isa isa) {
  return std::make_unique<elementwise::Elementwise<rules::Adam>>(settings, isa);
}

}  // namespace terrace::rules
