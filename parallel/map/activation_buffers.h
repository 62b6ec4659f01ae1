// The buffers of a step's activations on one rank: which chunk belongs to which layer and micro-batch, and what it holds.
//
//   x(l, m)        layer l's input for micro-batch m
//   saved(l, m)    the tensors that its forward saves; in generation, its cache
//   d(l, m)        the gradient of x(l, m)
//   e(l, m)        the part of that gradient from a layer that skips from x(l, m)
//   carried(l, m)  lives from the input half of a backward to its weight half
//   work(l, c, t)  tensor t of call c of the layer, only inside the call, from phase to phase
//   scratch(a)     only inside the action; phases of a layer with the same need share one
//   spare()        the output that a recomputation discards
//
// With sequence parallelism, x and d hold only this rank's rows.
//
// A buffer that this rank does not need is an empty chunk.
//
// Owner:   a StepMap, whose phases it borrows. Threads: const after the map's construction.
// Errors:  Error(ErrorKind::refused) for a layer that cannot generate, if positions are decoded.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <terrace/memory/chunk.h>
#include <terrace/parallel/map/chunk_table.h>
#include <terrace/parallel/map/layer_phases.h>
#include <terrace/parallel/map/pack.h>
#include <terrace/parallel/mesh/pipeline_parallel.h>
#include <terrace/parallel/model/layer.h>
#include <terrace/parallel/model/skips.h>
#include <terrace/parallel/model/step_shape.h>

namespace terrace::mapping {

class ActivationBuffers {
 public:
  // If `decode_positions` is not 0, saved(l, 0) is layer l's cache of this many positions.
  ActivationBuffers(const Model& model, const LayerPhases& phases, const model::Skips& skips, const mesh::HeldLayers& pipeline,
                    const StepShape& shape, std::int64_t decode_positions);
  // Each is called once. They are two because a map adds other chunks in between.
  void add_to(ChunkTable& chunks);
  void add_skips_to(ChunkTable& chunks);

  [[nodiscard]] ChunkId x(std::uint32_t layer, std::uint32_t m) const { return at(x_, layer, m); }
  [[nodiscard]] ChunkId d(std::uint32_t layer, std::uint32_t m) const { return at(d_, layer, m); }
  [[nodiscard]] ChunkId e(std::uint32_t layer, std::uint32_t m) const { return ChunkId(skipped_.at(layer) + m); }
  [[nodiscard]] ChunkId saved(std::uint32_t layer, std::uint32_t m) const { return at(saved_, layer, m); }
  [[nodiscard]] ChunkId carried(std::uint32_t layer, std::uint32_t m) const {
    return halves_ ? at(carried_, layer, m) : ChunkId(carried_ + layer);
  }
  [[nodiscard]] std::int64_t rows() const { return rows_; }  // of x and d
  [[nodiscard]] ChunkId scratch(const Action& a) const { return ChunkId(scratch_[a.layer] + phases_.scratch(a)); }
  // Each tensor of a call has its own buffer, so that one can be exchanged while the layer computes with others.
  [[nodiscard]] ChunkId work(std::uint32_t layer, LayerCall call, std::uint32_t tensor) const {
    return ChunkId(work_[layer] + tensor + (is_backward(call) ? work_tensors(layer, LayerCall::forward).size() : 0));
  }
  [[nodiscard]] const std::vector<TensorSpec>& work_tensors(std::uint32_t layer, LayerCall call) const {
    return phases_.steps(layer, is_backward(call) ? call : LayerCall::forward).work();
  }
  [[nodiscard]] ChunkId spare() const { return ChunkId(spare_); }
  [[nodiscard]] const Pack& saved_pack(std::uint32_t layer) const { return layers_[layer].saved; }
  [[nodiscard]] const Pack& carried_pack(std::uint32_t layer) const { return layers_[layer].carried; }

 private:
  struct OfLayer {
    Pack saved, carried;
    bool here = false;  // this rank computes the layer
    std::uint64_t input_bytes = 0, skip_bytes = 0;
  };
  static bool is_backward(LayerCall call) { return call == LayerCall::backward; }
  [[nodiscard]] ChunkId at(std::uint32_t first, std::uint32_t layer, std::uint32_t m) const {
    return ChunkId(first + layer * micro_batches_ + m);
  }

  const LayerPhases& phases_;
  std::uint32_t micro_batches_;
  bool halves_;
  std::int64_t rows_;
  std::uint64_t bytes_;  // of x and d
  std::vector<OfLayer> layers_;
  std::uint32_t x_ = 0, d_ = 0, saved_ = 0, carried_ = 0, spare_ = 0;
  std::vector<std::uint32_t> scratch_;  // [layer]: its first chunk
  std::vector<std::uint32_t> work_;     // [layer]: its first chunk
  std::vector<std::uint32_t> skipped_;  // [layer]: e(l, 0); empty without skips
};

}  // namespace terrace::mapping
