// The message of a move that failed: chunk, tier, file, offset, bytes and errno, and how to mend it.
//
// Threads: any.
#pragma once

#include <exception>
#include <string>

#include <terrace/memory/chunk.h>
#include <terrace/offload/chunk_store.h>

namespace terrace {

// `offset` is the store's, of the generation that was read or written.
std::exception_ptr move_error(const ChunkStore& store, const Move& move, std::uint64_t offset, int error_number);

// "chunk 7 (parameter of layers.3, elements 0..4194303)"; also the name of its trace span.
std::string move_name(const ChunkStore* store, const Move& move);

}  // namespace terrace
