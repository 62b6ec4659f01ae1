// How to treat a step whose loss or gradient is not finite. (If a smaller dynamic loss scale may help, the step is skipped in
// any case.)
//
// Threads: a value.
#pragma once

#include <cstdint>

namespace terrace {

enum class NonFinite : std::uint8_t { stop, skip };

}  // namespace terrace
