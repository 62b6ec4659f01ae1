// A text packed by gzip or zstd as one member or frame.
#pragma once

#include <string>
#include <string_view>

namespace terrace::test {

std::string gzip_packed(std::string_view text);
std::string zstd_packed(std::string_view text, int window_bits = 0);  // 0: the default

}  // namespace terrace::test
