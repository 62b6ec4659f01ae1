// Attention over positions that lie on several ranks: the keys and values of a slice go round the ranks, and each attends with
// its queries to the slice that it has just got. The results are merged by their log-sum-exps (ring attention, Liu et al. 2023;
// the zigzag of slices, context_parallel.h, gives all ranks equally much to do).
//
//   forward    norm, in, rotate, pack | hop, attend to the own slice | hop, attend | ... | attend, result | out, residual
//   backward   out's input gradient, pack | hop, gradient of the own slice | hop of gradients, hop, gradient, add | ... |
//              gradients home | rotate back | ...
//
// A hop lies before the attending that it runs beside: it fills one buffer while the other is attended to. In the backward the
// gradients of keys and values follow them round, so that a gradient is made apart and added when the sum has come.
// The sums are in the dtype of sums, also on their way.
//
// With a window, slices are runs of neighbours, and only as many hops are made as some query sees slices.
//
// Owner, threads, errors: as transformer_layer.h. It does not generate.
#pragma once

#include <terrace/parallel/layers/attention.h>

namespace terrace::layers {

class RingAttention final : public Attention {
 public:
  RingAttention(const Transformer& config, std::int64_t block);
  [[nodiscard]] std::vector<TensorSpec> work(LayerCall call, BatchShape shape) const override;
  [[nodiscard]] std::uint64_t scratch_bytes(BatchShape shape) const override;
  [[nodiscard]] double forward_flops(BatchShape shape) const override;
  // Pairs of a query and a key that a rank computes of a sequence, with the slice that has come by so many hops.
  [[nodiscard]] std::int64_t pairs(std::uint32_t rank, std::int64_t slice, std::uint32_t hops) const;
  // How often keys and values go on.
  [[nodiscard]] std::uint32_t hops(std::int64_t slice) const;

 private:
  // Of both calls; then of a forward, and of a backward.
  enum Work : std::uint32_t { kKeys, kOtherKeys, kSum };
  enum BackwardWork : std::uint32_t { kGradient = 2, kOtherGradient, kDattended, kDqueries, kPart };
  struct Step {
    enum class What : std::uint8_t { keys_hop, attend, add, gradients_hop, gradients_home, finish } what;
    std::uint32_t hops = 0;  // that its keys and values have made; of a hop, with this one
  };

  void save_middle(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const override;
  TensorView middle(LayerContext& ctx, const LayerTensors& t, ScratchArena& arena) const override;
  void middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView dqkv, TensorView dattended) const override;
  [[nodiscard]] std::vector<Phase> middle_phases(LayerCall call, BatchShape shape) const override;
  [[nodiscard]] std::vector<std::uint32_t> begins_middle(LayerCall call) const override;
  void run_middle(LayerContext& ctx, const LayerTensors& t, LayerCall call, std::uint32_t number) const override;

  [[nodiscard]] std::vector<Step> steps(LayerCall call, std::int64_t slice) const;
  [[nodiscard]] Phase phase(LayerCall call, BatchShape shape, const Step& step) const;
  // To the rank so many places on, and from the one as far behind.
  [[nodiscard]] PhaseExchange hop(std::uint32_t from, std::uint32_t to, std::uint32_t places, std::int64_t elements) const;
  // The blocks of a rank's attention to the slice of another one that has come by so many hops.
  [[nodiscard]] std::vector<AttentionBlock> blocks(std::uint32_t rank, BatchShape shape, std::uint32_t hops) const;
  [[nodiscard]] double products(BatchShape shape, std::uint32_t hops) const;

  void pack_keys(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const;
  void rotate_runs(LayerContext& ctx, TensorView qkv, bool inverse) const;
  void attend_to(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const;
  void attend_to_grad(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const;
  void finish_grad(LayerContext& ctx, const LayerTensors& t) const;
  [[nodiscard]] std::uint64_t finish_bytes(std::int64_t rows) const;

  [[nodiscard]] std::int64_t keys_row() const { return 2 * config_.kv_heads_here() * config_.head_dim(); }
  // Which of two buffers has what has made so many hops.
  static std::uint32_t keys_of(std::uint32_t hops) { return hops % 2 == 0 ? kKeys : kOtherKeys; }
  static std::uint32_t gradient_of(std::uint32_t hops) { return hops % 2 == 0 ? kGradient : kOtherGradient; }
};

}  // namespace terrace::layers
