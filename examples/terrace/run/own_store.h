// Finds out whether a store belongs to a run. Names cannot tell: a run directory can be copied or moved, another run can begin
// at the same path or on another machine, and a disk can be mounted elsewhere. So every start of a run draws an id, which it
// writes to run.json and into its commits. run.json lists the ids that the run's stores may have; a commit with any other id
// was written by another run.
//
// Threads: any. Errors: Error(ErrorKind::corrupt) for a store of another run.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <terrace/offload/store/chunk_store.h>

namespace terrace::cli {

std::string new_run_id();  // 32 hexadecimal digits

// Throws if another run has committed in the store. `run`: the directory of the run.
void demand_own_store(const ChunkStore::Options& store, const std::filesystem::path& run);

// Whether all its folders exist.
bool is_there(const ChunkStore::Options& store);
// Returns the store under the `given` paths if it is there and no longer where the run left it; otherwise `store`. A disk may
// be mounted elsewhere now, or each rank has its own paths.
ChunkStore::Options where_it_is(ChunkStore::Options store, std::span<const std::filesystem::path> given);

}  // namespace terrace::cli
