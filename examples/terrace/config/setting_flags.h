// The library names settings in backquotes (core/base/refused_setting.h). Its texts are shown with the flags of the option
// table, or the environment variable of a setting without a flag: "give `grad-clip` 0" as "give --grad-clip 0".
//
// Pure. Threads: any.
#pragma once

#include <string>
#include <string_view>

namespace terrace::cli {

std::string with_flags(std::string_view text);

}  // namespace terrace::cli
