// Which stores belong to a run. Their names do not tell: a run directory can be copied or moved, another run can begin at the
// same path, on another machine too, and a disk can be mounted elsewhere. So every start of a run draws an id, which stands in
// run.json and in the commits of that start. run.json lists the ids that the run's stores may have; a commit with any other id
// was written by another run.
//
// Threads: any. Errors: Error(Exit::corrupt) for a store of another run.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <terrace/offload/chunk_store.h>

namespace terrace::cli {

std::string new_run_id();  // 32 hexadecimal digits

// Throws if another run has committed in the store of the run in a directory.
void demand_own_store(const ChunkStore::Options& store, const std::filesystem::path& run);

// Whether all its folders are there.
bool is_there(const ChunkStore::Options& store);
// The store under the `given` paths if it is there and not where the run has left it: a disk that is mounted elsewhere now, or
// ranks that each have their own.
ChunkStore::Options where_it_is(ChunkStore::Options store, std::span<const std::filesystem::path> given);

}  // namespace terrace::cli
