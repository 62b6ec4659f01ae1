#include <terrace/optimizers/rules/adagrad.h>

#include <terrace/optimizers/loops/elementwise.h>

namespace terrace::rules {

std::unique_ptr<Optimizer> make_adagrad(const OptimizerSettings& settings, Isa isa) {
  return std::make_unique<elementwise::Elementwise<rules::Adagrad>>(settings, isa);
}

}  // namespace terrace::rules
