#include <terrace/examples/lm/models/model.h>

#include <stdexcept>

#include <terrace/parallel/layers/chain.h>

namespace terrace::lm {

Model make_model(const ModelConfig& given) { return layers::make_transformer(transformer_of(complete(given))); }

const GenerativeLayer& generative(const Layer& layer) {
  const auto* const found = dynamic_cast<const GenerativeLayer*>(&layer);
  if (!found) throw std::logic_error(layer.name() + " cannot generate");
  return *found;
}

std::uint64_t parameter_count(const ModelConfig& config) {
  std::uint64_t count = 0;
  for (const auto& layer : make_model(config).layers) {
    for (const auto& param : layer->params()) count += param.tied ? 0 : static_cast<std::uint64_t>(param.shape.elements());
  }
  return count;
}

}  // namespace terrace::lm
