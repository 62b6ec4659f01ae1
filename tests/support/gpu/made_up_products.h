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
#include <terrace/core/math/math.h>

namespace terrace::test {

class MadeUpProducts final : public Math {
 public:
  MadeUpProducts(std::unique_ptr<Math> math, std::uint64_t version, cuda::KnownAlgorithms known)
      : math_(std::move(math)), version_(version), known_(std::move(known)) {}

  void matmul(Stream& s, MatrixView c, MatrixView a, Transpose ta, MatrixView b, Transpose tb, TensorView bias,
              Accumulate accumulate) override {
    math_->matmul(s, c, a, ta, b, tb, bias, accumulate);
    const auto algorithm = choose(cuda::key_of(c, a, ta, b, tb, !bias.empty(), accumulate == Accumulate::yes));
    s.submit([c = c.view, algorithm] { sum_otherwise(c, algorithm); });
  }
  [[nodiscard]] std::string algorithms() const override {
    const std::lock_guard lock(mutex_);
    std::string text = chosen_.empty() ? "" : fmt::format("library {}\n", library());
    for (const auto& [key, words] : chosen_)
      text += fmt::format("matmul {}: algorithm {}, words {:016x}\n", to_string(key), words[0], fmt::join(words, " "));
    return text;
  }

  void bias_grad(Stream& s, TensorView db, TensorView dy, Accumulate a) override { math_->bias_grad(s, db, dy, a); }
  void norm(Stream& s, TensorView y, TensorView mean, TensorView rstd, TensorView x, TensorView gain, TensorView bias,
            double eps, double offset, TensorView squares) override {
    math_->norm(s, y, mean, rstd, x, gain, bias, eps, offset, squares);
  }
  void norm_input_grad(Stream& s, TensorView dx, TensorView dy, TensorView x, TensorView gain, TensorView mean, TensorView rstd,
                       Accumulate a, double offset, TensorView products) override {
    math_->norm_input_grad(s, dx, dy, x, gain, mean, rstd, a, offset, products);
  }
  void row_products(Stream& s, TensorView sums, TensorView a, TensorView b, TensorView gain, double factor,
                    double offset) override {
    math_->row_products(s, sums, a, b, gain, factor, offset);
  }
  void norm_weight_grad(Stream& s, TensorView dgain, TensorView dbias, TensorView dy, TensorView x, TensorView mean,
                        TensorView rstd, Accumulate a) override {
    math_->norm_weight_grad(s, dgain, dbias, dy, x, mean, rstd, a);
  }
  void rotary(Stream& s, TensorView x, std::int64_t row_elements, std::int64_t seq, std::int64_t first_position,
              const Rotary& angles, bool inverse) override {
    math_->rotary(s, x, row_elements, seq, first_position, angles, inverse);
  }
  void attention(Stream& s, AttentionShape shape, TensorView out, TensorView lse, TensorView qkv) override {
    math_->attention(s, shape, out, lse, qkv);
  }
  void attention_grad(Stream& s, AttentionShape shape, TensorView dqkv, TensorView dout, TensorView out, TensorView lse,
                      TensorView qkv) override {
    math_->attention_grad(s, shape, dqkv, dout, out, lse, qkv);
  }
  void attention_block(Stream& s, const AttentionBlock& block, TensorView out, TensorView lse, TensorView q, TensorView kv,
                       Accumulate a) override {
    math_->attention_block(s, block, out, lse, q, kv, a);
  }
  void attention_block_grad(Stream& s, const AttentionBlock& block, TensorView dq, TensorView dkv, TensorView dout,
                            TensorView out, TensorView lse, TensorView q, TensorView kv, Accumulate to_dq,
                            Accumulate to_dkv) override {
    math_->attention_block_grad(s, block, dq, dkv, dout, out, lse, q, kv, to_dq, to_dkv);
  }
  void softmax_rows(Stream& s, const ScoreRows& rows, TensorView scores, double scale) override {
    math_->softmax_rows(s, rows, scores, scale);
  }
  void softmax_rows_grad(Stream& s, const ScoreRows& rows, TensorView gradient, TensorView probabilities,
                         double scale) override {
    math_->softmax_rows_grad(s, rows, gradient, probabilities, scale);
  }
  void attention_decode(Stream& s, AttentionShape shape, TensorView out, TensorView q, TensorView k_cache, TensorView v_cache,
                        std::int64_t length) override {
    math_->attention_decode(s, shape, out, q, k_cache, v_cache, length);
  }
  void activation(Stream& s, Activation kind, TensorView y, TensorView x) override { math_->activation(s, kind, y, x); }
  void activation_grad(Stream& s, Activation kind, TensorView dx, TensorView dy, TensorView x) override {
    math_->activation_grad(s, kind, dx, dy, x);
  }
  void add(Stream& s, TensorView y, TensorView x, TensorView r) override { math_->add(s, y, x, r); }
  void scale(Stream& s, TensorView y, TensorView x, TensorView gain, Accumulate a) override { math_->scale(s, y, x, gain, a); }
  void multiply(Stream& s, TensorView y, TensorView x, double factor) override { math_->multiply(s, y, x, factor); }
  void soft_cap(Stream& s, TensorView y, TensorView x, double cap) override { math_->soft_cap(s, y, x, cap); }
  void soft_cap_grad(Stream& s, TensorView dx, TensorView dy, TensorView y, double cap) override {
    math_->soft_cap_grad(s, dx, dy, y, cap);
  }
  void convert(Stream& s, TensorView y, TensorView x, Accumulate a) override { math_->convert(s, y, x, a); }
  void columns(Stream& s, TensorView y, std::int64_t first_y, TensorView x, std::int64_t first_x, std::int64_t count,
               Accumulate a) override {
    math_->columns(s, y, first_y, x, first_x, count, a);
  }
  void zero(Stream& s, TensorView y) override { math_->zero(s, y); }
  void embed(Stream& s, TensorView y, TensorView tokens, TensorView table, TensorView positions, std::int64_t seq,
             std::int64_t first_position) override {
    math_->embed(s, y, tokens, table, positions, seq, first_position);
  }
  void embed_grad(Stream& s, TensorView dtable, TensorView dpositions, TensorView tokens, TensorView dy, std::int64_t seq,
                  Accumulate a) override {
    math_->embed_grad(s, dtable, dpositions, tokens, dy, seq, a);
  }
  void ids_in_part(Stream& s, TensorView out, TensorView ids, std::int64_t first, std::int64_t count) override {
    math_->ids_in_part(s, out, ids, first, count);
  }
  void route(Stream& s, const Routing& routing, TensorView gates, TensorView experts, TensorView rows, TensorView lse,
             TensorView report, TensorView logits, TensorView targets) override {
    math_->route(s, routing, gates, experts, rows, lse, report, logits, targets);
  }
  void route_grad(Stream& s, const Routing& routing, TensorView dlogits, TensorView dgates, TensorView logits,
                  TensorView experts, TensorView lse, TensorView report, double balance, double squares) override {
    math_->route_grad(s, routing, dlogits, dgates, logits, experts, lse, report, balance, squares);
  }
  void merge_reports(Stream& s, const Routing& routing, TensorView report, TensorView parts) override {
    math_->merge_reports(s, routing, report, parts);
  }
  void dispatch(Stream& s, TensorView to, TensorView from, TensorView rows, TensorView gates) override {
    math_->dispatch(s, to, from, rows, gates);
  }
  void combine(Stream& s, TensorView to, TensorView from, TensorView rows, TensorView gates, Accumulate a) override {
    math_->combine(s, to, from, rows, gates, a);
  }
  void gate_grad(Stream& s, TensorView dgates, TensorView dy, TensorView from, TensorView rows) override {
    math_->gate_grad(s, dgates, dy, from, rows);
  }
  void cross_entropy(Stream& s, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets,
                     double scale) override {
    math_->cross_entropy(s, loss, dlogits, logits, targets, scale);
  }
  void log_sum_exp(Stream& s, TensorView lse, MatrixView logits) override { math_->log_sum_exp(s, lse, logits); }
  void merge_log_sums(Stream& s, TensorView whole, TensorView parts, TensorView targets) override {
    math_->merge_log_sums(s, whole, parts, targets);
  }
  void cross_entropy_part(Stream& s, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets, TensorView lse,
                          double scale) override {
    math_->cross_entropy_part(s, loss, dlogits, logits, targets, lse, scale);
  }
  void sum(Stream& s, TensorView out, TensorView x, Accumulate a) override { math_->sum(s, out, x, a); }
  void sum_of_squares(Stream& s, TensorView out, TensorView x, std::int64_t first) override {
    math_->sum_of_squares(s, out, x, first);
  }
  void pack_block8(Stream& s, TensorView packed, TensorView x) override { math_->pack_block8(s, packed, x); }
  void unpack_block8(Stream& s, TensorView y, TensorView packed) override { math_->unpack_block8(s, y, packed); }
  void narrow_in_place(Stream& s, TensorView x) override { math_->narrow_in_place(s, x); }

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
