// Committed chunks, read and verified before they are asked for, each straight into the memory in which it will be used. Some
// 64 MiB are ahead, and at least one chunk.
//
// The caller gives the chunks in the order in which it will take them, and with each take the memory for a later one. A chunk
// that is not ahead when it is taken, or could not be read or verified, is left to the caller, whose own read_committed() then
// reports what is wrong.
//
// Owner:   the caller. The stores and the descriptions of the chunks must outlive it.
// Threads: one at a time.
// Errors:  the constructor's are those of IoThread; std::bad_alloc.
#pragma once

#include <memory>
#include <vector>

#include <terrace/offload/chunk_store.h>
#include <terrace/offload/page_buffer.h>

namespace terrace {

class ChunkReadAhead {
 public:
  struct Chunk {
    const ChunkStore* store = nullptr;
    const StoredChunk* stored = nullptr;
  };
  explicit ChunkReadAhead(std::vector<Chunk> in_order);
  ~ChunkReadAhead();
  ChunkReadAhead(const ChunkReadAhead&) = delete;
  ChunkReadAhead& operator=(const ChunkReadAhead&) = delete;

  // Whether `buffer` has the chunk's bytes now. If so, its old memory serves a later chunk.
  [[nodiscard]] bool take(const StoredChunk& chunk, PageBuffer& buffer);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
