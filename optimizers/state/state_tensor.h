// A tensor of an OptimizerState and the chunks of its states. Every chunk belongs to one tensor: a piece of it has one chunk
// for its master and one for each state, and they cover the same elements. An optimizer of whole tensors has one piece a
// tensor.
//
// Threads: values.
// Errors:  Error(ErrorKind::refused) for a weight or gradient that the recipe does not allow.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <terrace/core/math/tensor.h>
#include <terrace/offload/store/chunk_store.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/recipe.h>
#include <terrace/optimizers/state/optimizer_state.h>

namespace terrace::rules {

struct StatePiece {
  std::int64_t first = 0, count = 0;  // elements of the tensor
  struct Array {
    ChunkKind kind{};
    Format format{};
    std::int64_t elements = 0;  // numbers; of a packed state they are not those of the piece
    ChunkId chunk{};
    [[nodiscard]] std::uint64_t bytes() const { return bytes_of(format, static_cast<std::uint64_t>(elements)); }
  };
  std::optional<Array> master = {};
  std::vector<Array> states = {};                   // in the order of Optimizer::states()
  std::optional<ChunkId> weights = {};              // the copy for commits
  [[nodiscard]] std::uint64_t state_bytes() const;  // of masters and states, in a tier
  [[nodiscard]] std::uint64_t bytes_in(const TensorView& whole) const {
    return static_cast<std::uint64_t>(count) * size_of(whole.dtype);
  }
  [[nodiscard]] std::byte* begin_in(const TensorView& whole) const {
    return whole.data + static_cast<std::uint64_t>(first) * size_of(whole.dtype);
  }
};

struct StateTensor {
  std::string name;
  TensorView weight, gradient;
  OptimizerTensor set = {};
  std::uint64_t stream = 0;  // key of its random numbers
  std::vector<StatePiece> pieces = {};

  [[nodiscard]] UpdateTensor as_layer() const;
  [[nodiscard]] LayerShape layer_shape() const;
};

// The tensor's pieces. `make` makes a chunk of this description; `keeps_weights`: with one for the weights.
using MakeChunk = std::function<ChunkId(ChunkDescription)>;
StateTensor make_state_tensor(const Optimizer& optimizer, const std::string& recipe, std::uint64_t chunk_elements,
                              const std::string& name, const TensorView& weight, const TensorView& gradient,
                              const OptimizerTensor& set, bool keeps_weights, const MakeChunk& make);

}  // namespace terrace::rules
