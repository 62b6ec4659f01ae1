#include <terrace/optimizers/rules/adamw.h>

#include <terrace/optimizers/loops/elementwise.h>

namespace terrace::rules {

std::unique_ptr<Optimizer> make_adamw(const OptimizerSettings& settings, Isa isa) {
  return std::make_unique<elementwise::Elementwise<rules::AdamW>>(settings, isa);
}

}  // namespace terrace::rules
