// Copies between large host buffers past the cache.
//
// Threads: any; one call copies alone, on the caller's thread. When it returns, the bytes are visible as after memcpy.
#pragma once

#include <cstddef>

namespace terrace {

// Non-temporal stores above kNonTemporalBytes: neither buffer will be read again soon, and a store that does not first
// read its cache line moves half as much again. Buffers must not overlap.
inline constexpr std::size_t kNonTemporalBytes = 256 * 1024;
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes);
// The same whatever the size, for one who knows that the whole of which this is a part is large.
void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes);
// Out of memory into a buffer that stays in the cache: pages side by side, because a processor fetches ahead within a page
// only.
void copy_from_memory(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace terrace
