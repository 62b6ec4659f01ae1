// The last commit of one store as the first one of another, byte for byte, verified as it is read.
//
// Threads: any; nobody else uses either store meanwhile. Errors: those of both stores.
#pragma once

#include <terrace/offload/chunk_store.h>

namespace terrace {

// A fresh store like `like` (paths, name), with room for what is committed in `from`; committed when this returns.
void copy_store(const ChunkStore& from, ChunkStore::Options like);

}  // namespace terrace
