// The message of a move that failed: chunk, tier, file, offset, bytes and errno, and how to mend it.
//
// Threads: any.
#pragma once

#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include <terrace/memory/chunk.h>
#include <terrace/offload/chunk_store.h>
#include <terrace/offload/io_engine.h>

namespace terrace {

// `offset` is the store's, of the generation that was read or written.
std::exception_ptr move_error(const ChunkStore& store, const Move& move, std::uint64_t offset, int error_number);

// Some of a move's requests have not ended in time; the first of them is named, with the part of the chunk that it moves.
std::exception_ptr stuck_error(const ChunkStore& store, const Move& move, std::uint64_t offset,
                               const std::vector<IoRequest>& requests, std::chrono::nanoseconds deadline);

// "chunk 7 (parameter of layers.3, elements 0..4194303)"; also the name of its trace span.
std::string move_name(const ChunkStore* store, const Move& move);

}  // namespace terrace
