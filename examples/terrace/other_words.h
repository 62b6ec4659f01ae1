// What other programs call the flags of terrace.
//
// Threads: any. Errors: none.
#pragma once

#include <string_view>

namespace terrace::cli {

// "--lr" of "--learning-rate"; with a value where the other word is one: "--dtype bf16" of "--bf16". Empty: no program's.
std::string_view own_words_for(std::string_view flag);

}  // namespace terrace::cli
