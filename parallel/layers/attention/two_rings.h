// Attention over positions that lie on several ranks, by a ring of keys and then a ring of values: ring self-attention (Li et
// al. 2021, Sequence Parallelism). Each rank stores the scores of its queries against all keys, so that a softmax is one pass
// over whole rows, and no results are merged.
//
//   forward    hop of keys, scores of the own slice │ … │ softmax │ hop of values, sum of the own slice │ … │ result
//   backward   hop of values, gradient of probabilities, of values │ … │ softmax's gradient │ hop of keys, gradient of
//              queries, of keys │ … │ gradients of values and keys to the ranks that have them
//
// A hop is issued before the products that it overlaps with, as in ring.h. Each rank computes gradients of keys and values for
// all positions. They are summed over the ranks once, and a rank gets those of its own slice.
//
// Saved: q, k and v, the result, and the probabilities, [ranks, sequences · heads · positions, positions].
//
// Owner, threads, errors: as transformer_layer.h. It cannot generate.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/layers/attention/attention.h>
#include <terrace/parallel/layers/attention/ring.h>

namespace terrace::layers {

class TwoRings final : public Attention {
 public:
  TwoRings(const Transformer& config, std::int64_t block) : Attention(config, block) {}
  [[nodiscard]] std::vector<TensorSpec> middle_work(LayerCall call, BatchShape shape) const override;
  [[nodiscard]] double middle_flops(BatchShape shape) const override { return 2 * (hops(shape) + 1) * products(shape); }

  [[nodiscard]] std::uint32_t hops(BatchShape shape) const { return hops_of(config_.context(), window_, shape.seq); }

 private:
  enum MoreSaved : std::size_t { kProbabilities = kLogSumExp };
  [[nodiscard]] std::vector<TensorSpec> saved_of_middle(BatchShape shape) const override;
  // Working tensors, by sequence and head: [sequences, heads, positions, head_dim]. Of both calls; then of a forward, and of a
  // backward.
  enum Work : std::uint32_t { kQueries, kKeys, kOtherKeys, kValues, kOtherValues, kSum };
  enum BackwardWork : std::uint32_t { kDattended = 5, kDscores, kDqueries, kDkeys, kDvalues, kOwnDkeys, kOwnDvalues };
  // Each gives the working tensor with the keys, or the values, that have made this many hops.
  using Buffer = std::uint32_t (*)(std::uint32_t hops);
  // Hops of a buffer beside products with what it holds. `what`: what a product uses besides.
  using Product = void (TwoRings::*)(LayerContext&, const LayerTensors&, std::uint32_t hops) const;
  void describe_ring(CallSteps& steps, BatchShape shape, Buffer buffer, const Phase& what, Product product) const;
  void describe_forward(CallSteps& steps, BatchShape shape) const;
  void describe_backward(CallSteps& steps, BatchShape shape) const;
  [[nodiscard]] std::int64_t elements(BatchShape shape) const {  // of a slice's keys, or values
    return keys(shape) * shape.seq * config_.head_dim();
  }
  [[nodiscard]] std::vector<std::uint32_t> begins_middle(LayerCall call) const override;
  void save_middle(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const override;
  void middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView dqkv, TensorView dattended) const override;
  void describe_middle(CallSteps& steps, LayerCall call, BatchShape shape) const override {
    call == LayerCall::forward ? describe_forward(steps, shape) : describe_backward(steps, shape);
  }

  [[nodiscard]] bool capped() const { return config_.scores.cap != 0; }
  [[nodiscard]] double cap() const { return config_.scores.cap / config_.scores.factor(config_.head_dim()); }
  // Scores of one head, capped, against keys of the working tensor `keys`.
  void score(LayerContext& ctx, const LayerTensors& t, TensorView to, std::int64_t q, std::uint32_t keys, std::int64_t k) const;
  void forward_scores(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const;
  void forward_sums(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const;
  void backward_scores(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const;
  void backward_sums(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const;
  // Calls f(rows of the scores) for each document, or once for all rows.
  template <class F>
  void each_rows(const LayerContext& ctx, F&& f) const;
  void end_backward(LayerContext& ctx, const LayerTensors& t) const;

  // Converts between rows of heads side by side, from column `first` on, and a tensor by sequence and head.
  void deal(LayerContext& ctx, TensorView rows, std::int64_t first, std::int64_t heads, TensorView by_head, Way way) const;
  void deal_out(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const;  // into the working tensors
  // Calls f(query head, its key-value head, slice) for every sequence; the heads are indices of matrices.
  template <class F>
  void each_head(const LayerContext& ctx, std::uint32_t hops, F&& f) const;

  [[nodiscard]] std::uint32_t ranks() const { return config_.context().ranks; }
  // slice(): the slice that has made this many hops. sees(): true if this rank's queries see any of its keys.
  [[nodiscard]] std::uint32_t slice(std::uint32_t hops) const { return (config_.context().rank + ranks() - hops) % ranks(); }
  [[nodiscard]] bool sees(BatchShape shape, std::uint32_t slice) const;
  [[nodiscard]] std::int64_t queries(BatchShape shape) const { return shape.batch * config_.heads_here(); }  // matrices
  [[nodiscard]] std::int64_t keys(BatchShape shape) const { return shape.batch * config_.kv_heads_here(); }
  [[nodiscard]] double products(BatchShape shape) const;  // operations of the scores with one slice, or of its sums
  static std::uint32_t keys_of(std::uint32_t hops) { return hops % 2 == 0 ? kKeys : kOtherKeys; }
  static std::uint32_t values_of(std::uint32_t hops) { return hops % 2 == 0 ? kValues : kOtherValues; }
  // Matrix m of a tensor of matrices [positions, columns]. scores(): matrix m of one slice's scores.
  [[nodiscard]] static TensorView matrix(BatchShape shape, const TensorView& all, std::int64_t m, std::int64_t columns) {
    return part(all, m * shape.seq * columns, {shape.seq, columns});
  }
  [[nodiscard]] TensorView head(const LayerContext& ctx, const LayerTensors& t, std::uint32_t work, std::int64_t m) const {
    return matrix(ctx.shape, t.work[work], m, config_.head_dim());
  }
  [[nodiscard]] TensorView scores(BatchShape shape, const TensorView& all, std::uint32_t slice, std::int64_t m) const {
    return matrix(shape, all, slice * queries(shape) + m, shape.seq);
  }
};

}  // namespace terrace::layers
