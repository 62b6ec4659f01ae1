// The algorithms of matrix products and the kernels of attention, as recorded by a run or by the machine profile
// (Math::algorithms()). They are used again: an algorithm that was chosen once, by the library or by tuning, stays, and so do
// the bits.
//
// Owner, threads: values. Errors: Error(ErrorKind::corrupt) that names the line.
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

// The calls for which one kernel of attention is chosen.
struct AttentionSubject {
  bool backward = false;
  std::int64_t head_dim = 0;
  auto operator<=>(const AttentionSubject&) const = default;
};
// "attention bf16 forward, head dim 64": the beginning of the line that records it.
std::string to_string(const AttentionSubject& subject);

class RecordedAlgorithms {
 public:
  using Words = std::array<std::uint64_t, 8>;  // cublasLtMatmulAlgo_t

  // Reads lines "matmul PRODUCT: …, words W W W W W W W W", "attention …: warps|warpgroups", and one "library LIBRARY"; ignores
  // others. Empty text: nothing was recorded. `where` names the text in an error about damage.
  explicit RecordedAlgorithms(std::string_view text = {}, std::string_view where = "the run's algorithms.txt");
  [[nodiscard]] std::optional<Words> of(const ProductKey& key) const;
  [[nodiscard]] std::string attention(const AttentionSubject& subject) const;  // empty: not recorded
  [[nodiscard]] std::size_t size() const { return words_.size(); }
  [[nodiscard]] const std::string& library() const { return library_; }  // the library that chose them; empty if not recorded

 private:
  std::string library_;
  std::map<std::string, Words, std::less<>> words_;            // by to_string(key)
  std::map<std::string, std::string, std::less<>> attention_;  // by to_string(subject)
};

// The algorithms that a run's products must use, if some are recorded.
class KnownAlgorithms {
 public:
  // What the earlier part of the run recorded, and what the machine profile has.
  explicit KnownAlgorithms(std::string_view run = {}, std::string_view machine = {})
      : run_(run), machine_(machine, "the list \"algorithms\" of the machine profile") {}
  // The run's own are always used. The machine's are used only if `library` chose them: the words mean nothing to another
  // library.
  [[nodiscard]] std::optional<RecordedAlgorithms::Words> of(const ProductKey& key, std::string_view library) const;
  struct Attention {
    std::string kernel = {};  // warps | warpgroups; empty: not recorded
    bool by_run = false;
  };
  // If a run has recorded its products but no kernel for attention, it began before there was a choice: then the answer is
  // warps. `library` is called only if the machine profile has a line that would be used.
  [[nodiscard]] Attention attention(const AttentionSubject& subject, const std::function<std::string()>& library) const;

 private:
  RecordedAlgorithms run_, machine_;
};

}  // namespace terrace::cuda
