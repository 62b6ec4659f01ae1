// Checks of settings, shared by the optimizers. Errors: Error(ErrorKind::refused) that names the optimizer, the setting and its
// range.
#pragma once

#include <terrace/optimizers/optimizer.h>

namespace terrace::rules {

[[noreturn]] void refuse(const char* optimizer, const std::string& what);
// At least 0 and, as fp32, below 1.
void require_fraction(const char* optimizer, const char* setting, double value);
// Finite and not negative.
void require_rate(const char* optimizer, const char* setting, double value);
// Finite, and normal as fp32: an eps that becomes zero there would give 0/0 for every weight that never had a gradient.
void require_eps(const char* optimizer, double value);

}  // namespace terrace::rules
