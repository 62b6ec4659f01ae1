#include <terrace/examples/lm/models/family.h>

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/base/refused.h>

namespace terrace::lm {

const Family& family_named(std::string_view name) {
  for (const Family* const family : families()) {
    if (*family->name == name) return *family;
  }
  throw base::Refused(fmt::format("model: '{}' is not a model family; accepted are {}", name, names_of_families("and")));
}

std::string names_of_families(std::string_view between, bool (*has)(const Family&)) {
  std::vector<std::string_view> names;
  for (const Family* const family : families()) {
    if (has == nullptr || has(*family)) names.push_back(*family->name);
  }
  if (names.size() < 2) return names.empty() ? "" : std::string(names.front());
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} {} {}", fmt::join(names, ", "), between, last);
}

}  // namespace terrace::lm
