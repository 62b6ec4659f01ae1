// The version of terrace: MAJOR.MINOR.PATCH. It is set here, and CMake reads it from here; docs/changelog.md says what a new
// version may change.
//
// Threads: any; constant.
#pragma once

#include <string_view>

#define TERRACE_VERSION_MAJOR 0
#define TERRACE_VERSION_MINOR 1
#define TERRACE_VERSION_PATCH 0
// For comparisons by the preprocessor: #if TERRACE_VERSION_NUMBER >= 1002003 holds from 1.2.3 on.
#define TERRACE_VERSION_NUMBER (TERRACE_VERSION_MAJOR * 1000000 + TERRACE_VERSION_MINOR * 1000 + TERRACE_VERSION_PATCH)

namespace terrace {

// "0.1.0", of the library that the program is linked to.
std::string_view version();

}  // namespace terrace
