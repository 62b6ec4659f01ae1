// Skip connections: which layers read the result of an earlier layer in addition to that of the layer before.
//
// A skip is named by its tensor: x(k), the input of layer k and the result of layer k − 1, is read by layer k and, if a skip
// begins there, also by one later layer. Its gradient then has two parts, one from each reader.
//
// Owner:   a value. Threads: const after construction.
// Errors:  std::logic_error for a layer that skips from itself or a later one, or from the same place as another layer.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/model/layer.h>

namespace terrace::model {

class Skips {
 public:
  static constexpr std::uint32_t kNone = ~0U;

  Skips() = default;  // a chain
  explicit Skips(const Model& model);

  // The k of the x(k) that the layer reads in addition to its input.
  [[nodiscard]] std::uint32_t into(std::uint32_t layer) const { return into_.empty() ? kNone : into_[layer]; }
  // The layer that reads x(k) in addition to layer k.
  [[nodiscard]] std::uint32_t reader(std::uint32_t k) const { return into_.empty() ? kNone : reader_[k]; }
  [[nodiscard]] bool any() const { return !into_.empty(); }

 private:
  std::vector<std::uint32_t> into_, reader_;  // [layer]; empty: a chain
};

}  // namespace terrace::model
