// Unicode's normalisation form C (canonical composition), version 16.0.
//
// Threads: any. Errors: none: bytes that are not UTF-8 stay, and nothing is joined over them.
#pragma once

#include <string>
#include <string_view>

namespace terrace::lm {

// Whether NFC surely leaves the text as it is; false also for some texts that stay.
bool is_surely_nfc(std::string_view text);
std::string to_nfc(std::string_view text);

}  // namespace terrace::lm
