// Targets of positions that are no class of the loss.
//
// Threads: values.
#pragma once

#include <cstdint>

namespace terrace {

// kPadding: no target of another position depends on this one either, because attention is causal.
inline constexpr std::int32_t kNoTarget = -1, kPadding = -2;

}  // namespace terrace
