// Special values of targets, which are no class of the loss.
//
// Threads: values.
#pragma once

#include <cstdint>

namespace terrace::math {

// Neither has a loss. kPadding: no other position's target depends on this position, because attention is causal.
inline constexpr std::int32_t kNoTarget = -1, kPadding = -2;

}  // namespace terrace::math
