// Reads and verifies committed chunks before the caller asks for them, each straight into the memory where it will be used.
// About 64 MiB are read ahead, and at least one chunk.
//
// The caller lists the chunks in the order in which it will take them, and each take() hands over memory for a later chunk. If
// a chunk was not read ahead, or could not be read or verified, take() returns false and the caller reads it with
// read_committed(), which reports the error.
//
// Owner:   the caller. The stores and the descriptions of the chunks must outlive it.
// Threads: one at a time.
// Errors:  the constructor's are those of IoThread; std::bad_alloc.
#pragma once

#include <memory>
#include <vector>

#include <terrace/offload/io/io_choice.h>
#include <terrace/offload/io/page_buffer.h>
#include <terrace/offload/store/chunk_store.h>

namespace terrace::store {

class ChunkReadAhead {
 public:
  struct Chunk {
    const ChunkStore* store = nullptr;
    const StoredChunk* stored = nullptr;
  };
  explicit ChunkReadAhead(std::vector<Chunk> in_order, const IoChoice& choice = {});
  ~ChunkReadAhead();
  ChunkReadAhead(const ChunkReadAhead&) = delete;
  ChunkReadAhead& operator=(const ChunkReadAhead&) = delete;

  // True if `buffer` now holds the chunk's bytes; the buffer's old memory then serves a later chunk.
  [[nodiscard]] bool take(const StoredChunk& chunk, io::PageBuffer& buffer);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace::store
