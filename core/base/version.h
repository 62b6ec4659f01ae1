// The version of terrace. It is set in project() of CMakeLists.txt; docs/changelog.md says what a new version may change.
//
// Threads: any; constant.
#pragma once

#include <string_view>

namespace terrace {

std::string_view version();  // "0.1.0"

}  // namespace terrace
