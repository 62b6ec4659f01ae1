// The manual page terrace(1), in the language of troff.
//
// Threads: any. Errors: none.
#pragma once

#include <string>

#include <terrace/examples/terrace/cli/command_text.h>

namespace terrace::cli {

// `version`: "terrace 0.1.0".
std::string man_page(const CommandText& program, const std::string& version);

}  // namespace terrace::cli
