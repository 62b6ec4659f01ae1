// Copies the last commit of a run's stores into a new store with another layout: another number of ranks, another ZeRO stage,
// other stages of a pipeline.
//
// Threads: any; no other code may use the stores meanwhile. Memory: one chunk, and those of a CommittedState.
// Errors:  those of CommittedState (committed_state.h), and of the stores.
#pragma once

#include <span>
#include <vector>

#include <terrace/offload/store/chunk_store.h>
#include <terrace/optimizers/formats/format.h>

namespace terrace::state {

struct PlacedChunk {
  ChunkDescription description;
  rules::Format format = rules::Format::fp32;
  std::uint64_t place_offset = 0;  // in the flat space
};

// Copies the commit into `to`, a fresh store, and commits there. `from`: the stores of all ranks of the old run; some may be
// missing.
void reshard(std::span<const ChunkStore::Options> from, std::span<const PlacedChunk> chunks, ChunkStore& to);

}  // namespace terrace::state
