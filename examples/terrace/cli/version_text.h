// The text of `terrace version` and `terrace --version`.
//
// Threads: any.
#pragma once

#include <string>

namespace terrace::cli {

std::string version_line();  // "terrace 0.1.0"
// That line, the commit, the compiler, and a line for each library and module, with "left out" for absent ones. Modules are
// those that this program would load now.
std::string version_text();

}  // namespace terrace::cli
