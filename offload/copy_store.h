// The last commit of one store as the first one of another, byte for byte, verified as it is read.
//
// Threads: any; nobody else uses either store meanwhile. Errors: those of both stores.
#pragma once

#include <cstdlib>
#include <memory>

#include <terrace/offload/chunk_store.h>

namespace terrace {

// A fresh store like `like` (paths, name), with room for what is committed in `from`; committed when this returns.
void copy_store(const ChunkStore& from, ChunkStore::Options like);

// Memory for one chunk at a time: direct I/O wants whole pages.
class PageBuffer {
 public:
  std::span<std::byte> of(std::uint64_t bytes);  // what it held before is gone when it has to grow

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
