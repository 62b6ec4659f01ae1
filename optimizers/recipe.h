// A recipe: the formats of weights, gradients and optimizer states. They determine the bytes, from which the planner starts.
//
// A recipe has a name ("fp32"). Together with the model's dtype and the optimizer's states it defines every chunk's format.
//
// Threads: values. Errors: Error(ErrorKind::refused) for an unknown name, or one that does not support the dtype.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/core/math/dtype.h>
#include <terrace/memory/chunk.h>
#include <terrace/optimizers/formats/format.h>

namespace terrace::rules {

// The optimizer's moments. Such a chunk has no content before its first update.
constexpr bool is_optimizer_state(ChunkKind kind) {
  return kind == ChunkKind::first_moment || kind == ChunkKind::second_moment;
}

struct Recipe {
  std::string name = "fp32";
  DType compute = DType::fp32;  // weights as layers read them, and activations
  DType gradient = DType::fp32;
  Format master = Format::none;  // a master weight in addition to the compute weight; none: the compute weight is the master
  Format first_moment = Format::fp32, second_moment = Format::fp32;
  std::vector<ChunkKind> states = {ChunkKind::first_moment, ChunkKind::second_moment};  // Optimizer::states()

  static Recipe of(DType compute, std::string_view name = "fp32",
                   std::vector<ChunkKind> states = {ChunkKind::first_moment, ChunkKind::second_moment});

  // Only the weights as layers read them, without the state for updates: for generation.
  [[nodiscard]] Recipe weights_alone() const;

  [[nodiscard]] bool has_master() const { return master != Format::none; }
  // True if an update rewrites the compute weight from the master alone.
  [[nodiscard]] bool copies_master() const { return master == Format::fp32; }
  [[nodiscard]] DType weight_dtype() const;  // of weights as fill and visit see them
  [[nodiscard]] Format format_of(ChunkKind kind) const;
  // Every kind of state chunk, in the order that chunk ids are given.
  [[nodiscard]] std::vector<ChunkKind> kinds() const;
  [[nodiscard]] std::uint64_t chunk_bytes(ChunkKind kind, std::uint64_t elements) const;  // whole pages
};

struct RecipeName {
  std::string_view name, help;
};
std::span<const RecipeName> recipes();

}  // namespace terrace::rules
