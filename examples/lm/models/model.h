// A model of any family (family.h) as a chain of layers (parallel/layers/chain.h), with Hugging Face's names, shapes and
// orientations.
//
// Owner:   the caller owns the model; the model owns its layers. Every layer is a GenerativeLayer.
// Threads: as Layer.
// Errors:  Error(ErrorKind::refused) for an invalid config (model_config.h).
#pragma once

#include <terrace/examples/lm/models/model_config.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::lm {

Model make_model(const ModelConfig& config);
// Over all tensors; a tied tensor counts once.
std::uint64_t parameter_count(const ModelConfig& config);
// `layer`: one that make_model() made.
const GenerativeLayer& generative(const Layer& layer);

}  // namespace terrace::lm
