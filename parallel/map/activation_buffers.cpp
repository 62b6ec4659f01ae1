#include <terrace/parallel/map/activation_buffers.h>

#include <terrace/core/base/error.h>

namespace terrace::mapping {
namespace {

Chunk buffer(Role role, std::uint32_t layer, std::uint32_t micro_batch, std::uint64_t bytes) {
  return {.bytes = bytes,
          .kind = ChunkKind::activation,
          .end = memory::End::high,
          .layer = layer,
          .position = micro_batch,
          .role = role};
}

// The tensors of a layer's cache. Ranks in a grid, for example, describe no decode call.
std::vector<TensorSpec> cache_of(const Layer& layer, const CallSteps& decode, std::int64_t positions) {
  const auto* generative = dynamic_cast<const GenerativeLayer*>(&layer);
  if (!generative || decode.phases().empty()) throw Error("layer " + layer.name() + " cannot generate", ErrorKind::refused);
  return generative->cache(positions);
}

}  // namespace

ActivationBuffers::ActivationBuffers(const Model& model, const LayerPhases& phases, const model::Skips& skips,
                                     const mesh::HeldLayers& pipeline, const StepShape& shape, std::int64_t decode_positions)
    : phases_(phases),
      micro_batches_(shape.micro_batches),
      halves_(pipeline.halves),
      rows_(shape.batch.tokens() / (model.place.sequence ? model.place.tensor().ranks : 1)),
      bytes_(round_up(static_cast<std::uint64_t>(rows_ * model.width) * size_of(model.dtype), kPageBytes)) {
  for (std::uint32_t l = 0; l < model.layers.size(); ++l) {
    const auto reader = skips.reader(l);
    const bool here = pipeline.holds(l);
    // True if this rank computes the layer, the one before it, or the one that skips from its input.
    const bool has_input =
        here || (l > 0 && pipeline.holds(l - 1)) || (reader != model::Skips::kNone && pipeline.holds(reader));
    layers_.push_back({.saved = Pack(decode_positions == 0
                                         ? phases.facts(l).saved
                                         : cache_of(*model.layers[l], phases.steps(l, LayerCall::decode), decode_positions)),
                       .carried = Pack(phases.facts(l).carried),
                       .here = here,
                       .input_bytes = l == 0 || !has_input ? 0 : bytes_,
                       .skip_bytes = reader == model::Skips::kNone || !has_input ? 0 : bytes_});
  }
}

void ActivationBuffers::add_to(ChunkTable& chunks) {
  const auto add = [&](Role role, std::uint32_t copies, auto bytes_of) {
    const auto first = chunks.size();
    for (std::uint32_t l = 0; l < layers_.size(); ++l)
      for (std::uint32_t m = 0; m < copies; ++m) chunks.add(1, buffer(role, l, m, bytes_of(layers_[l])));
    return first;
  };
  const auto input_bytes = [](const OfLayer& l) { return l.input_bytes; };
  x_ = add(Role::input, micro_batches_, input_bytes);
  d_ = add(Role::input_gradient, micro_batches_, input_bytes);
  saved_ = add(Role::saved, micro_batches_, [](const OfLayer& l) { return l.here ? l.saved.bytes : 0; });
  carried_ = add(Role::carried, halves_ ? micro_batches_ : 1, [](const OfLayer& l) { return l.here ? l.carried.bytes : 0; });
  for (std::uint32_t l = 0; l < layers_.size(); ++l) {
    scratch_.push_back(chunks.size());
    for (const auto bytes : phases_.scratch_bytes(l)) chunks.add(1, buffer(Role::scratch, l, 0, layers_[l].here ? bytes : 0));
  }
  for (std::uint32_t l = 0; l < layers_.size(); ++l) {
    work_.push_back(chunks.size());
    for (const auto call : {LayerCall::forward, LayerCall::backward})
      for (const auto& tensor : work_tensors(l, call))
        chunks.add(1, buffer(Role::work, l, 0, layers_[l].here ? round_up(tensor.bytes(), kPageBytes) : 0));
  }
  spare_ = chunks.add(1, buffer(Role::spare, 0, 0, bytes_));
}

void ActivationBuffers::add_skips_to(ChunkTable& chunks) {
  for (std::uint32_t l = 0; l < layers_.size(); ++l) {
    skipped_.push_back(chunks.size());
    for (std::uint32_t m = 0; layers_[l].skip_bytes != 0 && m < micro_batches_; ++m)
      chunks.add(1, buffer(Role::skip_gradient, l, m, layers_[l].skip_bytes));
  }
}

}  // namespace terrace::mapping
