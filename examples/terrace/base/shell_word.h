// Quotes a text for a shell, in commands that are printed to be typed.
//
// Threads: any; pure.
#pragma once

#include <string>

namespace terrace::cli {

std::string shell_word(const std::string& text);

}  // namespace terrace::cli
