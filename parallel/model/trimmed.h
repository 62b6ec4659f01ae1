// A text without white space at its ends, for settings that are lists of names. Threads: any.
#pragma once

#include <string_view>

namespace terrace::model {

inline std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

}  // namespace terrace::model
