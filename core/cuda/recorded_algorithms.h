// The algorithms of matrix products as a run recorded them (Math::algorithms()), to be used again: what was chosen once, by
// this library or by tuning, stays, and with it the bits.
//
// Owner, threads: values. Errors: Error(Exit::corrupt) that names the line.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <terrace/core/cuda/product.h>

namespace terrace::cuda {

class RecordedAlgorithms {
 public:
  using Words = std::array<std::uint64_t, 8>;  // cublasLtMatmulAlgo_t

  // Lines "matmul PRODUCT: …, words W W W W W W W W"; other lines are left out. Empty text: nothing was recorded.
  explicit RecordedAlgorithms(std::string_view text = {});
  [[nodiscard]] std::optional<Words> of(const ProductKey& key) const;
  [[nodiscard]] std::size_t size() const { return words_.size(); }

 private:
  std::map<std::string, Words, std::less<>> words_;  // by to_string(key)
};

}  // namespace terrace::cuda
