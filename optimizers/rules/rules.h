// Finds the rule for an optimizer's name, for implementations other than the host's.
//
// Internal to optimizers/. Errors: Error(ErrorKind::refused) for settings out of range; std::logic_error for a name without a
// rule.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include <terrace/optimizers/rules/adagrad.h>
#include <terrace/optimizers/rules/adam.h>
#include <terrace/optimizers/rules/adamw.h>
#include <terrace/optimizers/rules/lion.h>
#include <terrace/optimizers/rules/sgd.h>

namespace terrace::rules {

// Returns f(rule); f must return the same type for every rule.
template <class F>
auto with_rule(std::string_view name, const OptimizerSettings& settings, F&& f) {
  if (name == AdamW::kName) return f(AdamW(settings));
  if (name == Adam::kName) return f(Adam(settings));
  if (name == Lion::kName) return f(Lion(settings));
  if (name == Adagrad::kName) return f(Adagrad(settings));
  if (name == "sgd") return with_sgd(settings, f);
  throw std::logic_error("optimizer \"" + std::string(name) + "\" has no rule");
}

}  // namespace terrace::rules
