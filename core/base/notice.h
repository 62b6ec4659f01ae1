// Messages of a program beside its result. The library warns through a Log (log.h). If the terminal is closed or the disk is
// full, they are lost and the program continues.
//
// Threads: any; each text is one write. Errors: none.
#pragma once

#include <cstdio>
#include <string_view>

namespace terrace::base {

void warn(std::string_view text) noexcept;                // "warning: …" and a new line, on standard error
void say(std::FILE* to, std::string_view text) noexcept;  // without prefix or new line

}  // namespace terrace::base
