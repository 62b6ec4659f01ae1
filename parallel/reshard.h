// The last commit of a run's stores as the first commit of a store that is laid out for other ranks: another number of them,
// another stage of ZeRO, other stages of a pipeline.
//
// The stores' indices say which elements of which tensors lie where, so that this is a copy by ranges and knows of no layout.
// What several stores hold is taken from the first of them that has it. What an optimizer has laid out itself has no ranges: it
// is copied whole from a chunk of the same label, or refused.
//
// Threads: any; nobody else uses the stores meanwhile. Memory: two chunks.
// Errors:  Error(Exit::corrupt) when a part of the state is nowhere, with the stores that are missing; Error(Exit::usage) when
//          it is kept in another way there; those of the stores.
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
