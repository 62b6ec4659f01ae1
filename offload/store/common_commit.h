// Opens the stores of a run's ranks at the last commit that all of them have: a rank may have died after the others committed
// and before it did.
//
// Owner:   the caller. Threads: any; no other code may use the stores meanwhile.
// Errors:  those of the stores; Error(ErrorKind::corrupt) if there is no such commit.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <terrace/offload/store/chunk_store.h>

namespace terrace::store {

struct CommonCommit {
  std::vector<std::unique_ptr<ChunkStore>> stores;
  std::uint64_t step = 0;
  std::uint64_t newest_step = 0;  // the newest step that any rank has committed
};

// Opens a store at its commit of this step; later commits are kept but ignored.
std::unique_ptr<ChunkStore> open_at_commit(ChunkStore::Options options, std::uint64_t step);

// Reading changes nothing in the stores, so later commits are kept.
CommonCommit open_at_common_commit(std::span<const ChunkStore::Options> ranks);

}  // namespace terrace::store
