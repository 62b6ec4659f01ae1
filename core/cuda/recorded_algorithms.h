// The algorithms of matrix products, and attention's kernels, as a run or the machine's profile recorded them
// (Math::algorithms()), to be used again: what was chosen once, by this library or by tuning, stays, and with it the bits.
//
// Owner, threads: values. Errors: Error(Exit::corrupt) that names the line.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <terrace/core/cuda/product.h>

namespace terrace::cuda {

// What the choice of attention's kernel is made for.
struct AttentionSubject {
  bool backward = false;
  std::int64_t head_dim = 0;
  auto operator<=>(const AttentionSubject&) const = default;
};
// "attention bf16 forward, head dim 64": what its line begins with.
std::string to_string(const AttentionSubject& subject);

class RecordedAlgorithms {
 public:
  using Words = std::array<std::uint64_t, 8>;  // cublasLtMatmulAlgo_t

  // Lines "matmul PRODUCT: …, words W W W W W W W W", "attention …: warps|warpgroups", and one "library LIBRARY"; others are
  // left out. Empty text: nothing was recorded. `where` is what an error says is damaged.
  explicit RecordedAlgorithms(std::string_view text = {}, std::string_view where = "the run's algorithms.txt");
  [[nodiscard]] std::optional<Words> of(const ProductKey& key) const;
  [[nodiscard]] std::string attention(const AttentionSubject& subject) const;  // empty: not recorded
  [[nodiscard]] std::size_t size() const { return words_.size(); }
  [[nodiscard]] const std::string& library() const { return library_; }  // that chose them; empty where it is not said

 private:
  std::string library_;
  std::map<std::string, Words, std::less<>> words_;            // by to_string(key)
  std::map<std::string, std::string, std::less<>> attention_;  // by to_string(subject)
};

// The algorithms that a run's products must use, if some are recorded.
class KnownAlgorithms {
 public:
  // Recorded by the earlier part of the run, and by the machine profile.
  explicit KnownAlgorithms(std::string_view run = {}, std::string_view machine = {})
      : run_(run), machine_(machine, "the list \"algorithms\" of the machine profile") {}
  // The run's own always; the machine's only if it is `library` that chose them, because their words mean nothing to another.
  [[nodiscard]] std::optional<RecordedAlgorithms::Words> of(const ProductKey& key, std::string_view library) const;
  struct Attention {
    std::string kernel = {};  // warps | warpgroups; empty: nothing says which
    bool by_run = false;
  };
  // A run that has recorded its products and not this began before there was a choice: warps. `library` is asked only where the
  // machine's line would count.
  [[nodiscard]] Attention attention(const AttentionSubject& subject, const std::function<std::string()>& library) const;

 private:
  RecordedAlgorithms run_, machine_;
};

}  // namespace terrace::cuda
