// Binds the arguments of a function, filter or method to parameter names, as Python does.
//
// Threads: any. Errors: Fault for too many, unknown or missing arguments.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/examples/lm/chat/jinja/value.h>

namespace terrace::lm::jinja {

class Bound {
 public:
  // The first `required` names must have a value.
  Bound(std::string_view of, Arguments& given, std::initializer_list<std::string_view> names, std::size_t required = 0)
      : of_(of), names_(names), values_(names.size()) {
    if (given.positional.size() > names_.size()) fail(fmt::format("'{}' takes at most {} arguments here", of_, names_.size()));
    for (std::size_t i = 0; i < given.positional.size(); ++i) values_[i] = std::move(given.positional[i]);
    for (auto& [name, value] : given.named) {
      const auto at = static_cast<std::size_t>(std::ranges::find(names_, name) - names_.begin());
      if (at == names_.size()) fail(fmt::format("'{}' takes no argument '{}' here", of_, base::printable(name)));
      if (values_[at]) fail(fmt::format("'{}' has the argument '{}' twice", of_, name));
      values_[at] = std::move(value);
    }
    for (std::size_t i = 0; i < required; ++i)
      if (!values_[i]) fail(fmt::format("'{}' needs the argument '{}'", of_, names_[i]));
  }

  [[nodiscard]] bool has(std::size_t i) const { return values_[i].has_value(); }
  // False also for None, because most arguments treat None like an absent one.
  [[nodiscard]] bool given(std::size_t i) const { return values_[i] && !values_[i]->is<None>(); }
  [[nodiscard]] const Value& operator[](std::size_t i) const { return *values_[i]; }
  [[nodiscard]] bool flag(std::size_t i, bool absent = false) const { return values_[i] ? is_true(*values_[i]) : absent; }
  [[nodiscard]] std::int64_t number(std::size_t i, std::int64_t absent) const {
    if (!values_[i]) return absent;
    demand_defined(*values_[i]);
    if (const auto value = values_[i]->integer()) return *value;
    fail(fmt::format("the argument '{}' of '{}' is {} and no integer", names_[i], of_, type_of(*values_[i])));
  }
  [[nodiscard]] const std::string& text(std::size_t i) const {
    demand_defined(*values_[i]);
    if (const auto* const value = values_[i]->text()) return *value;
    fail(fmt::format("the argument '{}' of '{}' is {} and no text", names_[i], of_, type_of(*values_[i])));
  }

 private:
  std::string of_;
  std::vector<std::string_view> names_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace terrace::lm::jinja
