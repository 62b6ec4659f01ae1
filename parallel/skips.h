// Skip connections: which layers read the result of an earlier layer beside that of the layer before.
//
// They are spoken of by tensor: x(k), the input of layer k and the result of layer k − 1, is read by layer k and, where a skip
// begins there, by one later layer. Its gradient then has two parts, one of each reader.
//
// Owner:   a value; whoever walks a model's layers. Threads: const after construction.
// Errors:  std::logic_error for layers that skip from themselves, from later ones, or from where another one does.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/layer.h>

namespace terrace {

class Skips {
 public:
  static constexpr std::uint32_t kNone = ~0U;

  Skips() = default;  // a chain
  explicit Skips(const Model& model);

  // The k of the x(k) that the layer reads beside its input.
  [[nodiscard]] std::uint32_t into(std::uint32_t layer) const { return into_.empty() ? kNone : into_[layer]; }
  // The layer that reads x(k) beside layer k.
  [[nodiscard]] std::uint32_t reader(std::uint32_t k) const { return into_.empty() ? kNone : reader_[k]; }
  [[nodiscard]] bool any() const { return !into_.empty(); }

 private:
  std::vector<std::uint32_t> into_, reader_;  // [layer]; empty: a chain
};

}  // namespace terrace
