// Ulysses within a ring (unified sequence parallelism, Fang and Zhao 2024): neighbours exchange heads, so that together they
// have all positions of their place in the ring, and the keys and values of a rank's heads go round the ring.
//
//   forward    norm, in, rotate, pack │ all-to-all │ order │ the ring's phases │ pack │ all-to-all │ unpack │ out, residual
//
// It saves the same tensors as Ulysses.
//
// Owner, threads, errors: as transformer_layer.h. It cannot generate.
#pragma once

#include <terrace/parallel/layers/attention/ring.h>
#include <terrace/parallel/layers/attention/ulysses.h>

namespace terrace::layers {

class UlyssesRing final : public Ulysses {
 public:
  UlyssesRing(const Transformer& config, std::int64_t block);

 private:
  [[nodiscard]] double middle_flops(BatchShape shape) const override { return ring_.forward_flops(place(shape)); }
  [[nodiscard]] std::vector<TensorSpec> middle_work(LayerCall call, BatchShape shape) const override;
  void describe_heads(CallSteps& steps, LayerCall call, BatchShape shape) const override;
  [[nodiscard]] Ring::OfRing tensors(BatchShape shape, const LayerTensors& t) const;
  [[nodiscard]] BatchShape place(BatchShape shape) const { return {shape.batch, shape.seq * ranks_}; }
  void order(LayerContext& ctx, const LayerTensors& t, LayerCall call) const;
  void pack(LayerContext& ctx, const LayerTensors& t, LayerCall call) const;

  const Ring ring_;
};

}  // namespace terrace::layers
