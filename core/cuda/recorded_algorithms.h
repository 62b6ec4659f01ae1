// The algorithms of matrix products as a run or the machine's profile recorded them (Math::algorithms()), to be used again:
// what was chosen once, by this library or by tuning, stays, and with it the bits.
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

  // Lines "matmul PRODUCT: …, words W W W W W W W W", and one "library LIBRARY"; others are left out. Empty text: nothing was
  // recorded. `where` is what an error says is damaged.
  explicit RecordedAlgorithms(std::string_view text = {}, std::string_view where = "the run's algorithms.txt");
  [[nodiscard]] std::optional<Words> of(const ProductKey& key) const;
  [[nodiscard]] std::size_t size() const { return words_.size(); }
  [[nodiscard]] const std::string& library() const { return library_; }  // that chose them; empty where it is not said

 private:
  std::string library_;
  std::map<std::string, Words, std::less<>> words_;  // by to_string(key)
};

// What a run's products must use, if anything says so.
class KnownAlgorithms {
 public:
  // Of the run's earlier part, and of the machine's profile.
  explicit KnownAlgorithms(std::string_view run = {}, std::string_view machine = {})
      : run_(run), machine_(machine, "the list \"algorithms\" of the machine profile") {}
  // The run's own always; the machine's only if it is `library` that chose them, because their words mean nothing to another.
  [[nodiscard]] std::optional<RecordedAlgorithms::Words> of(const ProductKey& key, std::string_view library) const;

 private:
  RecordedAlgorithms run_, machine_;
};

}  // namespace terrace::cuda
