// Copies between large host buffers past the cache.
//
// Threads: any; one call copies alone, on the caller's thread. When it returns, the bytes are visible as after memcpy.
#pragma once

#include <cstddef>

namespace terrace::device {

// Non-temporal stores above kNonTemporalBytes: neither buffer will be read again soon, and an ordinary store first reads its
// cache line, which adds half as much traffic again. Buffers must not overlap.
inline constexpr std::size_t kNonTemporalBytes = 256 * 1024;
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes);
// Non-temporal stores for any size, for callers that copy a large buffer in small parts.
void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes);
// From memory into a buffer that stays in the cache. Copies several pages at the same time, because a processor prefetches only
// within a page.
void copy_from_memory(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace terrace::device
