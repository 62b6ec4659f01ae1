// The version of terrace. Its one place is project() in CMakeLists.txt; docs/changelog.md says what a new one may change.
//
// Threads: any; constant.
#pragma once

#include <string_view>

namespace terrace {

std::string_view version();  // "0.1.0"

}  // namespace terrace
