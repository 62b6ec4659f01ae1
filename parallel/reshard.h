// The last commit of a run's stores as the first commit of a store that is laid out for other ranks: another number of them,
// another stage of ZeRO, other stages of a pipeline.
//
// Threads: any; nobody else uses the stores meanwhile. Memory: two chunks.
// Errors:  those of CommittedState (committed_state.h), and of the stores.
#pragma once

#include <span>
#include <vector>

#include <terrace/offload/chunk_store.h>
#include <terrace/optimizers/format.h>

namespace terrace {

struct PlacedChunk {
  ChunkDescription description;
  Format format = Format::fp32;
  std::uint64_t place_offset = 0;  // in the flat space
};

// Copies into `to`, which is fresh, and commits there. `from`: of all ranks of that run, of which some may be missing.
void reshard(std::span<const ChunkStore::Options> from, std::span<const PlacedChunk> chunks, ChunkStore& to);

}  // namespace terrace
