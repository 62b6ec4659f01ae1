// The budgets and the disk tier that OffloadOptions ask for: a temporary file, or a store that lasts.
//
// Owner:   the caller. Threads: any.
// Errors:  Error(ErrorKind::refused) for options that do not go together; those of ChunkStore::create() and open().
#pragma once

#include <cstdint>
#include <memory>

#include <terrace/memory/tier.h>
#include <terrace/offload/store/chunk_store.h>

namespace terrace {

struct OffloadOptions;

namespace offload {

Budget budget_of(const OffloadOptions& options);
// Generations of a chunk that lasts: two if there is a store, so that a commit never overwrites the last one.
std::uint32_t generations_of(const OffloadOptions& options);
// Null if the options have no disk tier. A store that has a commit is opened at it; else a new one is made. `owner` makes the
// name of a temporary one unique in this process.
std::unique_ptr<ChunkStore> make_disk_tier(const OffloadOptions& options, const Budget& budget, const void* owner);

}  // namespace offload
}  // namespace terrace
