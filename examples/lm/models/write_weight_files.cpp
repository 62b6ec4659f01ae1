
#include <fmt/format.h>

#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/models/model_dir.h>
#include <terrace/examples/lm/weights/weight_files.h>

#include <nlohmann/json.hpp>

namespace terrace::lm {
namespace {

struct Shard {
  std::vector<NamedParam> params;
  std::uint64_t bytes = 0;
};

// Keeps the order of the model; no tensor is split over two files.
std::vector<Shard> shards_of(const std::vector<std::vector<ParamSpec>>& layers, DType dtype, std::uint64_t most_bytes) {
  std::vector<Shard> all(1);
  for (const auto& params : layers)
    for (const auto& param : params) {
      if (param.tied) continue;
      const auto bytes = static_cast<std::uint64_t>(param.shape.elements()) * size_of(dtype);
      if (all.back().bytes != 0 && all.back().bytes + bytes > most_bytes) all.emplace_back();
      all.back().params.push_back({&param, param.name});
      all.back().bytes += bytes;
    }
  return all;
}

}  // namespace

void write_weight_file(const std::filesystem::path& file, std::span<const NamedParam> params, DType dtype,
                       const ReadRange& read, const IoChoice& io) {
  std::vector<SafetensorsDeclaration> tensors;
  for (const auto& [param, name] : params) {
    auto& tensor = tensors.emplace_back(SafetensorsDeclaration{name, dtype, {}});
    for (std::size_t i = 0; i < param->shape.rank(); ++i) tensor.shape.push_back(static_cast<std::uint64_t>(param->shape[i]));
  }
  SafetensorsWriter writer(file, tensors, {{"format", "pt"}}, io);
  for (const auto& [param, name] : params)
    writer.write(name, [&, param = param](std::uint64_t first, TensorView piece) { read(*param, first, piece); });
  writer.finish();
}

void write_weight_files(const std::filesystem::path& directory, const Model& model, DType dtype, std::uint64_t most_bytes,
                        const ReadRange& read, const IoChoice& io) {
  std::vector<std::vector<ParamSpec>> layers;
  for (const auto& layer : model.layers) layers.push_back(layer->params());
  const auto shards = shards_of(layers, dtype, most_bytes);
  if (shards.size() == 1) return write_weight_file(directory / kWeightsFile, shards.front().params, dtype, read, io);
  nlohmann::json map = nlohmann::json::object();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_weight_file(directory / name, shards[i].params, dtype, read, io);
    for (const auto& tensor : shards[i].params) map[tensor.name] = name;
    total += shards[i].bytes;
  }
  // The index is written last: a directory with an index is complete.
  const nlohmann::json index{{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  replace_text_file(directory / kWeightsIndex, index.dump(2) + "\n", files::Durable::yes);
}

}  // namespace terrace::lm
