// The colours of curves on the page of a bench. More could not be distinguished.
#pragma once

#include <array>

namespace terrace::cli {

inline constexpr std::array<const char*, 7> kBenchColours{"compute", "upload", "read", "write", "update", "download", "other"};

}  // namespace terrace::cli
