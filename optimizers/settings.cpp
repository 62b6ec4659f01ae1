#include <terrace/optimizers/settings.h>

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include <terrace/core/base/error.h>

namespace terrace::rules {
namespace {

void require(bool in_range, const char* optimizer, const char* setting, double value, const char* range) {
  if (!in_range) refuse(optimizer, fmt::format("{} is {}; it must be {}", setting, value, range));
}

}  // namespace

void refuse(const char* optimizer, const std::string& what) {
  throw Error(fmt::format("{}: {}", optimizer, what), ErrorKind::refused);
}

void require_fraction(const char* optimizer, const char* setting, double value) {
  require(value >= 0 && static_cast<float>(value) < 1.0F, optimizer, setting, value, "at least 0 and, as fp32, below 1");
}

void require_rate(const char* optimizer, const char* setting, double value) {
  require(std::isfinite(value) && value >= 0, optimizer, setting, value, "finite and not negative");
}

void require_eps(const char* optimizer, double value) {
  require(std::isfinite(value) && value >= std::numeric_limits<float>::min(), optimizer, "eps", value,
          "finite and at least 1.2e-38 (the smallest normal fp32)");
}

}  // namespace terrace::rules
