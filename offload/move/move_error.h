// The message of a failed move: chunk, tier, file, offset, bytes and errno, and the remedy.
//
// Threads: any.
#pragma once

#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include <terrace/memory/chunk.h>
#include <terrace/offload/io/io_engine.h>
#include <terrace/offload/store/chunk_store.h>

namespace terrace::offload {

// `offset` is the offset in the store of the generation that was read or written.
std::exception_ptr move_error(const ChunkStore& store, const Move& move, std::uint64_t offset, int error_number);

// For a move with requests past their deadline: names the first of them, with its part of the chunk.
std::exception_ptr stuck_error(const ChunkStore& store, const Move& move, std::uint64_t offset,
                               const std::vector<IoRequest>& requests, std::chrono::nanoseconds deadline);

// "chunk 7 (parameter of layers.3, elements 0..4194303)"; also the name of its trace span.
std::string move_name(const ChunkStore* store, const Move& move);

}  // namespace terrace::offload
