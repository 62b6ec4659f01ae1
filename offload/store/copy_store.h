// Copies the last commit of one store into a fresh store as its first commit, byte for byte, with checksums verified.
//
// Threads: any. Meanwhile the store that is read may be used, but not committed. Errors: those of both stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>

#include <terrace/offload/store/chunk_store.h>

namespace terrace::store {

// Makes a fresh store with the options `like` (paths, name) and the last commit of `from`, committed when this returns. If a
// stop is requested, it returns early and the fresh store has no commit.
void copy_store(const ChunkStore& from, ChunkStore::Options like, const std::stop_token& stop = {});

// Writes a chunk whole, for the next commit; `bytes` lie in a PageBuffer.
void write_chunk(ChunkStore& to, const ChunkDescription& chunk, std::uint64_t place_offset, std::span<const std::byte> bytes);

}  // namespace terrace::store
