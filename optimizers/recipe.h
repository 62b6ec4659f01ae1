// A recipe: how weights, gradients and optimizer states are kept, and so their bytes. The planner's physics starts here.
//
// A recipe has a name ("fp32"); with the model's dtype and the states that the optimizer asks for it says what every chunk is.
//
// Threads: values. Errors: Error(Exit::usage) for an unknown name, or one that does not go with the dtype.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/core/dtype.h>
#include <terrace/memory/chunk.h>
#include <terrace/optimizers/format.h>

namespace terrace {

// What an optimizer keeps of the past. Such a chunk holds nothing before its first update.
constexpr bool is_optimizer_state(Kind kind) { return kind == Kind::first_moment || kind == Kind::second_moment; }

struct Recipe {
  std::string name = "fp32";
  DType compute = DType::fp32;  // weights as layers read them, and activations
  DType gradient = DType::fp32;
  Format master = Format::none;  // a master weight beside the compute weight; none: the compute weight is the master
  Format first_moment = Format::fp32, second_moment = Format::fp32;
  std::vector<Kind> states = {Kind::first_moment, Kind::second_moment};  // Optimizer::states()

  static Recipe of(DType compute, std::string_view name = "fp32",
                   std::vector<Kind> states = {Kind::first_moment, Kind::second_moment});

  // As layers read them, without what updates want: for generation.
  [[nodiscard]] Recipe weights_alone() const;

  [[nodiscard]] bool has_master() const { return master != Format::none; }
  // An update writes the compute weight anew, from the master alone.
  [[nodiscard]] bool copies_master() const { return master == Format::fp32; }
  [[nodiscard]] DType weight_dtype() const;  // of weights as fill and visit see them
  [[nodiscard]] Format format_of(Kind kind) const;
  // Every kind of state chunk, in the order that chunk ids are given.
  [[nodiscard]] std::vector<Kind> kinds() const;
  [[nodiscard]] std::uint64_t chunk_bytes(Kind kind, std::uint64_t elements) const;  // whole pages
};

struct RecipeName {
  std::string_view name, help;
};
std::span<const RecipeName> recipes();

}  // namespace terrace
