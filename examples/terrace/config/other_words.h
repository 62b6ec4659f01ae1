// What other programs call the flags of terrace.
//
// Threads: any. Errors: none.
#pragma once

#include <string_view>

namespace terrace::cli {

// The flag of terrace for another program's flag: "--lr" for "--learning-rate", or with a value, "--dtype bf16" for "--bf16".
// Empty: unknown.
std::string_view own_words_for(std::string_view flag);

}  // namespace terrace::cli
