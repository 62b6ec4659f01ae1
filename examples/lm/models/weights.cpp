#include <terrace/examples/lm/models/weights.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/weights/safetensors.h>
#include <terrace/examples/lm/weights/weight_files.h>
#include <terrace/examples/lm/weights/weight_hash.h>

namespace terrace::lm {
namespace {

template <class F>
void with_span(const TensorView& range, F&& use) {
  const auto n = static_cast<std::size_t>(range.elements());
  switch (range.dtype) {
    case DType::fp32: return use(std::span(range.as<float>(), n));
    case DType::fp64: return use(std::span(range.as<double>(), n));
    case DType::bf16: return use(std::span(range.as<bf16>(), n));
    case DType::fp16:  // its fp32 master weights are visited instead
    case DType::i32:
    case DType::e4m3:
    case DType::e5m2: break;
  }
  throw std::logic_error(fmt::format("weights are not {}", name_of(range.dtype)));
}

std::string name_in(const WeightFiles& file, const Family& family, const std::string& name) {
  const std::string wrapper(*family.file.wrapper.prefix);
  const std::string_view optional = *family.tensors.optional_prefix;
  const auto shorter = name.starts_with(optional) ? name.substr(optional.size()) : name;
  for (auto one : {wrapper + name, wrapper + shorter, name})
    if (file.find(one)) return one;
  return shorter;
}

bool is_buffer(const Family& family, std::string_view name) {
  return std::ranges::any_of(family.tensors.buffers, [&](std::string_view ending) { return name.ends_with(ending); });
}

// True for the tensor with one row per position, if the family has one.
bool is_of_positions(const Family& family, const std::string& name) {
  const auto* const learned = learned_positions(family);
  return learned && name == layers::weight_name(*learned->tensor);
}

[[noreturn]] void refuse_without(const std::filesystem::path& path, const WeightFiles& file, const Family& family,
                                 const std::string& name) {
  const auto embedding = layers::weight_name(*family.tensors.embedding);
  if (name == layers::weight_name(*family.tensors.head) && !name_in(file, family, embedding).ends_with(embedding))
    throw base::Refused(
        fmt::format("{} has no tensor {}: AutoModel writes a model without its output head\n  write it with "
                    "AutoModelForCausalLM",
                    path.string(), name));
  throw AnotherModel(fmt::format("{} has no tensor {}", path.string(), name));
}

}  // namespace

WeightSource weights_from(const std::filesystem::path& path, const Family& family, const Model& model, const IoChoice& io) {
  auto file = std::make_shared<WeightFiles>(path, io);
  for (const auto& layer : model.layers)
    for (const auto& param : layer->params()) {
      if (param.tied) continue;
      const auto* entry = file->find(name_in(*file, family, param.name));
      if (!entry) refuse_without(path, *file, family, param.name);
      if (!can_be_read(entry->type))
        throw base::Refused(fmt::format("{}: tensor {} is of dtype {}; F32, BF16, F16 and F64 can be read", path.string(),
                                        param.name, name_of(entry->type)));
      const auto whole = model::whole_shape(param.shape, param.split);
      const auto rows = entry->shape.empty() ? 0 : entry->shape.front();
      const auto positions = is_of_positions(family, param.name) ? static_cast<std::uint64_t>(whole[0]) : 0;
      bool same = entry->shape.size() == whole.rank();
      for (std::size_t i = 0; same && i < whole.rank(); ++i)
        same = entry->shape[i] == static_cast<std::uint64_t>(whole[i]) || (i == 0 && positions != 0 && rows > positions);
      if (rows < positions)
        throw base::Refused(fmt::format("{} has {} positions, and --seq-len is {}\n  give --seq-len {} or less", path.string(),
                                        rows, positions, rows));
      if (!same)
        throw AnotherModel(fmt::format("{}: tensor {} has shape [{}], the model has {}", path.string(), param.name,
                                       base::printable(fmt::format("{}", fmt::join(entry->shape, ", "))), to_string(whole)));
    }
  WeightSource source([file, &family](const ParamSpec& param, std::uint64_t first, TensorView range) {
    with_span(range, [&](auto out) { file->read(name_in(*file, family, param.name), first, out); });
  });
  source.announce = [file, &family](const ParamSpec& param, std::uint64_t first, std::uint64_t elements) {
    file->announce(name_in(*file, family, param.name), first, elements);
  };
  return source;
}

std::uint64_t positions_in(const std::filesystem::path& path, const Family& family, const Model& model) {
  const WeightFiles file(path);
  for (const auto& layer : model.layers)
    for (const auto& param : layer->params())
      if (is_of_positions(family, param.name))
        if (const auto* const entry = file.find(name_in(file, family, param.name)); entry && !entry->shape.empty())
          return entry->shape.front();
  return 0;
}

std::vector<std::string> tensors_of_another_model(const std::filesystem::path& path, const Family& family, const Model& model) {
  const WeightFiles file(path);
  std::set<std::string> used;
  std::string table;  // the embedding's tensor, which the head shares
  for (const auto& layer : model.layers)
    for (const auto& param : layer->params()) {
      used.insert(name_in(file, family, param.name));
      for (const auto& name : param.dealt) used.insert(name_in(file, family, name));
      if (param.tied) table = name_in(file, family, param.name);
    }
  // In a model with further parts, the tensors of the other parts are ignored.
  const std::string_view prefix = *family.file.wrapper.prefix;
  const bool is_wrapped =
      !prefix.empty() && std::ranges::any_of(used, [&](const std::string& name) { return name.starts_with(prefix); });
  std::vector<std::string> names;
  for (const auto& one : file.files())
    for (const auto& entry : one.entries()) {
      if (is_wrapped && !entry.name.starts_with(prefix)) continue;
      if (used.contains(entry.name) || is_buffer(family, entry.name)) continue;
      if (entry.name == name_in(file, family, layers::weight_name(*family.tensors.head)) && file.same_bytes(entry.name, table))
        continue;
      names.push_back(entry.name);
    }
  return names;
}

// visit() gives the ranges chunk by chunk, mixing the parts of tensor and expert ranks. Each rank's part has its own hash, so
// that the chunk size, which may depend on a budget, does not change the result.
std::string hash_weights(Engine& engine) {
  const auto parts = engine.map().parts();
  std::vector<WeightHash> hashes(parts.ranks());
  engine.visit([&](const ParamSpec& param, std::uint64_t first, TensorView range) {
    const auto expert_rank = param.dealt.empty() ? 0 : std::ranges::find(param.dealt, param.name) - param.dealt.begin();
    auto& hash = hashes[static_cast<std::size_t>(expert_rank) * parts.tensor.ranks +
                        model::rank_of(first, param.shape, param.split, parts.tensor.ranks)];
    with_span(range, [&](auto in) {
      using T = typename decltype(in)::value_type;
      hash.add(std::span<const T>(in));
    });
  });
  return combined(hashes);
}

void save_weights(Engine& engine, const std::filesystem::path& path, std::map<std::string, std::string> metadata,
                  const IoChoice& io) {
  metadata.emplace("format", "pt");
  const auto& map = engine.map();
  const auto dtype = map.options().recipe.weight_dtype();
  std::vector<SafetensorsDeclaration> tensors;
  const auto declare = [&](const ParamSpec& param, std::size_t expert_rank) {
    if (param.tied) return;
    std::vector<std::uint64_t> shape;
    const auto whole = model::whole_shape(param.shape, param.split);
    for (std::size_t i = 0; i < whole.rank(); ++i) shape.push_back(static_cast<std::uint64_t>(whole[i]));
    tensors.push_back({param.dealt.empty() ? param.name : param.dealt[expert_rank], dtype, std::move(shape)});
  };
  // In the order that one rank would have: all tensors of an expert, then the next expert.
  for (std::uint32_t l = 0; l < map.layers(); ++l) {
    const auto& params = map.layout().params(l);
    for (auto at = params.begin(); at != params.end();) {
      const auto is_common = [](const ParamSpec& param) { return param.dealt.empty(); };
      const auto end = is_common(*at) ? at + 1 : std::find_if(at, params.end(), is_common);
      for (std::size_t rank = 0; rank < std::max<std::size_t>(1, at->dealt.size()); ++rank)
        std::for_each(at, end, [&](const ParamSpec& param) { declare(param, rank); });
      at = end;
    }
  }
  SafetensorsWriter writer(path, tensors, metadata, io);
  engine.visit([&](const ParamSpec& param, std::uint64_t first, TensorView range) {
    with_span(range, [&](auto in) {
      using T = typename decltype(in)::value_type;
      writer.write(param.name, first, std::span<const T>(in));
    });
  });
  writer.finish();
}

}  // namespace terrace::lm
