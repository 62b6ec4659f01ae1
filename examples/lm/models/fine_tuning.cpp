#include <terrace/examples/lm/models/fine_tuning.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <vector>

#include <nlohmann/json.hpp>

#include <terrace/core/base/folders.h>
#include <terrace/core/base/json_text.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/models/weights.h>
#include <terrace/examples/lm/weights/weight_files.h>
#include <terrace/parallel/layers/parts/names.h>
#include <terrace/parallel/train/initial_weights.h>

namespace terrace::lm {
namespace {

ModelConfig of_all_ranks(ModelConfig config) {
  config.place = {};
  return config;
}

}  // namespace

ModelConfig without_adapters(ModelConfig config) {
  config.adapters = {};
  return config;
}

WeightSource with_adapters(const WeightSource& base, const WeightSource& adapters) {
  WeightSource both([=](const ParamSpec& param, std::uint64_t first, TensorView range) {
    (layers::is_adapter(param.name) ? adapters : base).read(param, first, range);
  });
  both.announce = [=](const ParamSpec& param, std::uint64_t first, std::uint64_t elements) {
    if (const auto& one = layers::is_adapter(param.name) ? adapters : base; one.announce) one.announce(param, first, elements);
  };
  return both;
}

WeightSource first_adapters(const ModelConfig& config, std::uint64_t seed, const std::filesystem::path& directory,
                            const IoChoice& io) {
  if (directory.empty()) return random_weights(seed);
  return adapters_from(directory, config.adapters, config.family, make_model(of_all_ranks(config)), io);
}

WeightSource first_weights(const std::filesystem::path& base, const ModelConfig& config, std::uint64_t seed,
                           const std::filesystem::path& adapters, const IoChoice& io) {
  const auto weights = weights_from(base, config.family, make_model(without_adapters(config)), io);
  if (config.adapters.rank == 0) return weights;
  return with_adapters(weights, first_adapters(config, seed, adapters, io));
}

void save_adapters(Engine& engine, const std::filesystem::path& directory, const ModelConfig& config, const std::string& base,
                   bool writes, const IoChoice& io) {
  const auto dtype = engine.map().options().recipe.weight_dtype();
  const auto model = make_model(of_all_ranks(config));
  std::map<std::string, std::vector<std::byte>> kept;
  if (writes)
    for (const auto& layer : model.layers)
      for (const auto& param : layer->params())
        if (layers::is_adapter(param.name))
          kept[param.name].resize(static_cast<std::size_t>(param.shape.elements()) * size_of(dtype));
  engine.visit([&](const ParamSpec& param, std::uint64_t first, TensorView range) {
    if (const auto at = kept.find(param.name); at != kept.end())
      std::copy_n(range.data, range.bytes(), at->second.data() + static_cast<std::size_t>(first) * size_of(dtype));
  });
  if (!writes) return;
  files::make_folders(directory);
  write_adapters(
      directory, config.adapters, config.family, model, base, dtype,
      [&](const ParamSpec& param, std::uint64_t first, TensorView range) {
        std::copy_n(kept.at(param.name).data() + static_cast<std::size_t>(first) * size_of(dtype), range.bytes(), range.data);
      },
      io);
}

void save_model(Engine& engine, const std::filesystem::path& directory, const ModelConfig& config,
                const std::filesystem::path& base, bool writes, const IoChoice& io) {
  if (config.adapters.rank != 0) throw std::logic_error("save_model: the model has adapters");
  if (!writes) return engine.visit([](const ParamSpec&, std::uint64_t, TensorView) {});
  const auto dtype = engine.map().options().recipe.weight_dtype();
  const auto others = base.empty() ? nlohmann::json() : base::parse_json(read_text_file(base / kModelConfigFile));
  const auto json = model_config_json(complete(of_all_ranks(config)), dtype, others);
  files::make_folders(directory);
  save_weights(engine, directory / kWeightsFile, {}, io);
  replace_text_file(directory / kModelConfigFile, json.dump(2) + "\n", files::Durable::yes);
}

}  // namespace terrace::lm
