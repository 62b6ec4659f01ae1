// Copies the last commit of one store into a fresh store as its first commit, byte for byte, with checksums verified.
//
// Threads: any; no other code may use either store meanwhile. Errors: those of both stores.
#pragma once

#include <cstdlib>
#include <memory>

#include <terrace/offload/chunk_store.h>

namespace terrace {

// Makes a fresh store like `like` (paths, name) with the commit of `from`; it is committed when this returns.
void copy_store(const ChunkStore& from, ChunkStore::Options like);

// Memory for one chunk at a time, in whole pages, which direct I/O requires.
class PageBuffer {
 public:
  std::span<std::byte> of(std::uint64_t bytes);  // loses its content if it has to grow

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::uint64_t bytes_ = 0;
};

// Writes a chunk whole, for the next commit; `bytes` lie in a PageBuffer.
void write_chunk(ChunkStore& to, const ChunkDescription& chunk, std::uint64_t place_offset, std::span<const std::byte> bytes);

}  // namespace terrace
