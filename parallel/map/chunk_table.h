// All chunks of one rank: its state, and the buffers of a step, in runs that are contiguous in memory. A chunk's id is its
// position in the table.
//
// Owner:   a StepMap. Threads: const after the map's construction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/memory/chunk.h>
#include <terrace/memory/residency.h>

namespace terrace::mapping {

enum class Role : std::uint8_t {
  state,
  tied_gradient,
  input,           // of a layer, for a micro-batch
  input_gradient,  // of that input
  skip_gradient,   // the part of that gradient from a layer that skips from the input
  saved,           // from a forward for its backward
  carried,         // from the input half of a backward to its weight half
  work,            // of a layer, inside one call, from phase to phase
  scratch,         // of a layer, inside one action
  spare,           // the output that a recomputation discards
  // Shared by ranks, and alive only for a short time:
  gathered,     // weights to compute with
  bucket,       // gradients to reduce
  tied_bucket,  // tied gradients to reduce
  visited,      // weights to visit
  update_scratch,
  kept,      // an old weight version
  previous,  // a state chunk from before an early update
};
// Chunks of the model's state. (A commit writes all of them but the gradients.)
constexpr bool is_state(Role role) { return role == Role::state || role == Role::tied_gradient; }
// Chunks whose bytes are laid out like a layer's parameters.
constexpr bool is_of_parameters(Role role) {
  return is_state(role) || role == Role::gathered || role == Role::bucket || role == Role::tied_bucket || role == Role::kept;
}

struct Chunk {
  std::uint64_t bytes = 0;
  ChunkKind kind = ChunkKind::activation;
  memory::End end = memory::End::low;
  std::uint32_t layer = 0, position = 0;  // position: chunk within the layer, or micro-batch
  Role role = Role::state;
  std::uint32_t run_first = 0, run_count = 1;
};

class ChunkTable {
 public:
  // Adds a run of equal chunks; returns the number of the first one. In a run of several, positions count up from 0.
  std::uint32_t add(std::uint32_t count, Chunk chunk);
  void place(std::uint32_t chunk, std::uint32_t position) { chunks_[chunk].position = position; }
  void add_to(memory::Residency& residency) const;  // all of them; the residency must be empty

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(chunks_.size()); }
  [[nodiscard]] const Chunk& operator[](ChunkId chunk) const { return chunks_[index(chunk)]; }
  [[nodiscard]] bool leads_run(ChunkId chunk) const { return chunks_[index(chunk)].run_first == index(chunk); }
  [[nodiscard]] std::uint64_t state_bytes() const;

 private:
  std::vector<Chunk> chunks_;
};

// "second moment of layers.7.mlp, elements 4194304..8388607", "input of layers.3.attention, micro-batch 2".
std::string describe(const Chunk& chunk, const std::string& layer, std::uint64_t chunk_elements);

}  // namespace terrace::mapping
