// Unicode's normalisation form C (canonical composition), version 16.0.
//
// Threads: any. Errors: none: invalid UTF-8 bytes stay, and nothing is composed across them.
#pragma once

#include <string>
#include <string_view>

namespace terrace::lm {

// True only if NFC does not change the text; may be false even if it does not.
bool is_surely_nfc(std::string_view text);
std::string to_nfc(std::string_view text);

}  // namespace terrace::lm
