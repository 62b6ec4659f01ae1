// The CPU's math with several algorithms for matrix products, as in a GPU's library: version n of the library chooses algorithm
// n for every product, and algorithms give different bits. So the bits of a run show which algorithm it used.
//
// Owner: as Math; owns the wrapped one. Threads: as Math.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/cuda/recorded_algorithms.h>
#include <terrace/core/math/math_call.h>

namespace terrace::test {

class MadeUpProducts final : public Math {
 public:
  MadeUpProducts(std::unique_ptr<Math> math, std::uint64_t version, cuda::KnownAlgorithms known)
      : math_(std::move(math)), version_(version), known_(std::move(known)) {}

  void enqueue(Stream& stream, const math::MathCall& call) override {
    math_->enqueue(stream, call);
    if (const auto* const product = math::call_if<&Math::matmul>(call)) {
      const auto& [c, a, ta, b, tb, bias, accumulate] = product->arguments;
      const auto algorithm = choose(cuda::key_of(c, a, ta, b, tb, !bias.empty(), accumulate == Accumulate::yes));
      stream.submit([view = c.view, algorithm] { sum_otherwise(view, algorithm); });
    }
  }
  [[nodiscard]] std::string algorithms() const override {
    const std::lock_guard lock(mutex_);
    std::string text = chosen_.empty() ? "" : fmt::format("library {}\n", library());
    for (const auto& [key, words] : chosen_)
      text += fmt::format("matmul {}: algorithm {}, words {:016x}\n", to_string(key), words[0], fmt::join(words, " "));
    return text;
  }

 private:
  using Words = cuda::RecordedAlgorithms::Words;

  [[nodiscard]] std::string library() const { return fmt::format("made up, version {}", version_); }
  std::uint64_t choose(const cuda::ProductKey& key) {
    const std::lock_guard lock(mutex_);
    const auto [at, fresh] = chosen_.try_emplace(key, Words{version_});
    if (!fresh) return at->second[0];
    if (const auto known = known_.of(key, library())) at->second = *known;
    return at->second[0];
  }
  // Changes the lowest bits of the first element, as another order of additions would.
  static void sum_otherwise(const TensorView& c, std::uint64_t algorithm) {
    if (c.elements() == 0) return;
    auto* const first = static_cast<std::byte*>(c.data);  // its lowest byte: the machine is little-endian
    *first ^= static_cast<std::byte>(algorithm);
  }

  const std::unique_ptr<Math> math_;
  const std::uint64_t version_;
  const cuda::KnownAlgorithms known_;
  mutable std::mutex mutex_;
  std::map<cuda::ProductKey, Words> chosen_;
};

}  // namespace terrace::test
