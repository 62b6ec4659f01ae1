#include <terrace/optimizers/rules/sgd.h>

#include <terrace/optimizers/loops/elementwise.h>

namespace terrace::rules {

std::unique_ptr<Optimizer> make_sgd(const OptimizerSettings& settings, Isa isa) {
  return rules::with_sgd(settings, [&]<class Rule>(const Rule&) -> std::unique_ptr<Optimizer> {
    return std::make_unique<elementwise::Elementwise<Rule>>(settings, isa);
  });
}

}  // namespace terrace::rules
