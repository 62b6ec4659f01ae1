// What is said beside a result. A terminal that was closed, or a disk that is full, loses it, and that ends nothing.
//
// Threads: any; each text is one write. Errors: none.
#pragma once

#include <cstdio>
#include <string_view>

namespace terrace {

void warn(std::string_view text) noexcept;                // "warning: …" and a new line, on standard error
void say(std::FILE* to, std::string_view text) noexcept;  // as it stands

}  // namespace terrace
