// The contract between a model and the engine.
//
// A model is a chain of layers: layer l maps the activations x(l) [N, C] to x(l+1), N = tokens of a micro-batch. The first
// layer reads token ids instead of activations, the last one ends in the loss. A skip connection is declared by the layer where
// it ends: that layer also reads the result of an earlier one.
//
// A call of a layer (such as its forward) has one phase or several (phase.h), which describe() lists with what they compute.
// The engine leases what one phase uses at once, so the smallest legal device budget is that of the largest phase, not of the
// largest layer.
//
// A model may be split over ranks (tensor_parallel.h). Then the loss and the gradients of parameters that several ranks hold
// are this rank's part of a sum over the ranks. y and dx are whole: layers whose results are parts describe the sums, too
// (tensor_edges.h).
//
// Owner:   the model owns its layers. Layers are stateless: every call gets all its tensors as arguments.
// Threads: describe() may be called from any thread. Steps run on the rank thread and only enqueue work on ctx.stream. A
//          forward of a layer with a report may wait for the stream, because what it enqueues depends on the report.
// Errors:  std::logic_error for views that do not match the layer's own specification.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/core/math/math.h>
#include <terrace/core/math/routing.h>
#include <terrace/core/math/tensor.h>
#include <terrace/parallel/comm/call.h>
#include <terrace/parallel/mesh/model_rank.h>
#include <terrace/parallel/model/call_steps.h>
#include <terrace/parallel/model/layer_context.h>
#include <terrace/parallel/model/phase.h>
#include <terrace/parallel/model/tensor_split.h>

namespace terrace {

enum class InitKind : std::uint8_t { zeros, ones, normal, uniform };
struct Init {
  InitKind kind = InitKind::zeros;
  double std = 0;  // standard deviation, for normal; the largest value, for uniform
};

struct ParamSpec {
  std::string name;  // the name in Hugging Face checkpoints; unique, unless tied
  Shape shape = {};  // of this rank's part
  Init init = {};
  double decay = 1;   // multiplies the weight decay; 0: exempt
  bool tied = false;  // an earlier layer declared this name: this layer reads its weights and adds to its gradient
  double rate = 1;    // multiplies the learning rate
  // The group (param_group.h) whose norm clips its gradient; −1: clipped with all parameters without a group.
  std::int32_t clip_group = -1;
  model::TensorSplit split = {};  // where this rank's part lies in the whole
  // The names of this parameter on each expert rank, including this rank's `name`; empty: all have the same parameter.
  std::vector<std::string> dealt = {};
  // Parameters of a layer that its phases use together share a unit number. Numbers ascend; a large unit can be leased
  // separately.
  std::uint32_t unit = 0;
  bool apart = false;  // its unit may be leased separately even if little lies before it
  // Its rows (or its columns, if tile_dim is 1) are cut into `tiles` blocks; if these cannot be equal, the first ones are
  // longer by one (param_tiles.h). Each block is a unit, and a phase uses one at a time. If the rows are `tile_parts` parts of
  // equal length (gate and values in one tensor), each block has its rows of every part.
  std::uint32_t tiles = 1, tile_dim = 0, tile_parts = 1;
  // Training only reads it: it has no gradient, no optimizer state and no master weight, and its bytes never change.
  bool frozen = false;
};

// What a layer says of itself beside its calls. What depends on the shape of a micro-batch is for one shape.
struct LayerFacts {
  // saved: what the forward saves for the backward, in addition to x. carried: what the input half hands to the weight half.
  std::vector<TensorSpec> saved = {}, carried = {};
  double forward_flops = 0;  // matrix products only
  // True if its backward reads x. If not, x is freed after the forward, unless the forward is recomputed.
  bool keeps_input = true;
  // The number of the earlier layer whose result it reads in addition to that of the layer before. At most one layer may skip
  // from each layer. The engine passes the skip to the forward and the input half only: if the weight half needs it, the layer
  // saves or carries it.
  std::optional<std::uint32_t> skips_from = {};
  // Numbers that a forward writes into ctx.report. The backward of the same micro-batch finds them there.
  std::int64_t report_size = 0;
  // Not empty for a layer that routes tokens: its report begins with RoutingReport's numbers.
  std::optional<Routing> routing = {};
};

class Layer {
 public:
  virtual ~Layer() = default;
  [[nodiscard]] virtual std::string name() const = 0;  // "layers.3.mlp"
  [[nodiscard]] virtual std::vector<ParamSpec> params() const = 0;
  [[nodiscard]] virtual LayerFacts facts(BatchShape shape = {.batch = 1, .seq = 1}) const = 0;
  // Describes a call for micro-batches of this shape; a call that the layer does not have gets no steps. The last layer's
  // forward computes the loss only; its backward computes the loss and everything else at once, so a training program never
  // calls its forward.
  //   forward    x → y, saved
  //   backward   dy, x, saved → dx, carried (Half::input), gradients (Half::weight)
  //   decode     x [1, C] → y [1, C], for generative layers (below)
  virtual void describe(CallSteps& steps, LayerCall call, BatchShape shape) const = 0;
  [[nodiscard]] CallSteps described(LayerCall call, BatchShape shape) const;

  // Describe a call and run it, or its phase ctx.phase. The engine keeps descriptions instead.
  void forward(LayerContext& ctx, const LayerTensors& t) const;
  void backward(LayerContext& ctx, const LayerTensors& t, Half half) const;
};

// A layer that can also generate: one position of one sequence at a time, with a cache of the earlier positions. In its
// LayerCall::decode, the first layer reads ctx.tokens [1], and the last writes y = logits [1, V]; `saved` is the cache, and
// ctx.position the position. All earlier positions must have been decoded with the same cache.
class GenerativeLayer : public Layer {
 public:
  // The tensors of the cache for sequences of at most `capacity` positions; empty for layers without a cache.
  [[nodiscard]] virtual std::vector<TensorSpec> cache(std::int64_t capacity) const = 0;
};

struct Model {
  std::string family;         // "llama"
  DType dtype = DType::fp32;  // of weights and activations
  std::int64_t width = 0;     // C
  std::vector<std::unique_ptr<Layer>> layers;
  ModelRank place = {};  // the rank whose part the layers are
};
// The number of layers that route tokens, and how many numbers of their reports (all of RoutingReport) the ranks sum in a step.
inline std::size_t routers_in(const Model& model) {
  return static_cast<std::size_t>(
      std::ranges::count_if(model.layers, [](const auto& layer) { return layer->facts().routing.has_value(); }));
}
inline std::size_t router_sums_of(const Model& model) {
  std::size_t sums = 0;
  for (const auto& layer : model.layers)
    if (const auto routing = layer->facts().routing) sums += static_cast<std::size_t>(RoutingReport{*routing}.size());
  return sums;
}

}  // namespace terrace
