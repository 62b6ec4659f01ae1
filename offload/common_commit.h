// The stores of a run's ranks at the last commit that all of them have: a rank may have died between the others' commit and its
// own.
//
// Owner:   the caller. Threads: any; nobody else uses the stores meanwhile.
// Errors:  those of the stores; Error(Exit::corrupt) where there is no such commit.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <terrace/offload/chunk_store.h>

namespace terrace {

struct CommonCommit {
  std::vector<std::unique_ptr<ChunkStore>> stores;
  std::uint64_t step = 0;
  std::uint64_t newest_step = 0;  // of any of them
};

// A store that may have later ones.
std::unique_ptr<ChunkStore> open_at_commit(ChunkStore::Options options, std::uint64_t step);

// Whoever only reads them leaves all of them as they were, later commits too.
CommonCommit open_at_common_commit(std::span<const ChunkStore::Options> ranks);

}  // namespace terrace
