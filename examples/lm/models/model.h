// A model of any family (family.h) as a chain of layers (parallel/layers/chain.h), with Hugging Face's names, shapes and
// orientations.
//
// Owner:   the caller owns the model, the model its layers; every layer is a GenerativeLayer.
// Threads: as Layer.
// Errors:  Error(Exit::usage) for an invalid config (model_config.h).
#pragma once

#include <terrace/examples/lm/models/model_config.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::lm {

Model make_model(const ModelConfig& config);
// Of all tensors; a tied one counts once.
std::uint64_t parameter_count(const ModelConfig& config);
// A layer of a model that make_model() made.
const GenerativeLayer& generative(const Layer& layer);

}  // namespace terrace::lm
