#include <terrace/examples/lm/model.h>

#include <stdexcept>

#include <terrace/examples/lm/attention_block.h>
#include <terrace/examples/lm/embedding.h>
#include <terrace/examples/lm/head.h>
#include <terrace/examples/lm/mlp_block.h>
#include <terrace/examples/lm/skip_block.h>

namespace terrace::lm {

namespace {

// Layer 0 is the embedding, block i the layers 2i + 1 and 2i + 2.
std::unique_ptr<LmLayer> attention(const ModelConfig& config, std::int64_t block) {
  auto layer = std::make_unique<AttentionBlock>(config, block);
  const auto from = config.skips_from(block);
  if (from < 0) return layer;
  return std::make_unique<SkipBlock>(config, block, static_cast<std::uint32_t>(2 * from + 2), std::move(layer));
}

}  // namespace

Model make_model(const ModelConfig& given) {
  const ModelConfig config = complete(given);
  Model model{.family = std::string(*config.family.get().name),
              .dtype = config.dtype,
              .width = config.hidden,
              .layers = {},
              .tensor = config.tensor};
  model.layers.push_back(std::make_unique<Embedding>(config));
  for (std::int64_t block = 0; block < config.layers; ++block) {
    model.layers.push_back(attention(config, block));
    model.layers.push_back(std::make_unique<MlpBlock>(config, block));
  }
  model.layers.push_back(std::make_unique<Head>(config));
  return model;
}

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
