#include <terrace/examples/lm/adapters.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include <terrace/core/error.h>
#include <terrace/core/json_text.h>
#include <terrace/core/printable.h>
#include <terrace/core/text_file.h>
#include <terrace/examples/lm/low_rank_sum.h>
#include <terrace/examples/lm/weight_files.h>
#include <terrace/parallel/layers/names.h>

namespace terrace::lm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "base_model.model.";  // of PEFT's names of tensors

// A word for a result of a block's products, and the tensor that it lies in.
struct Target {
  std::string_view word, tensor;
};

std::vector<Target> targets_of(const Family& family) {
  const auto& names = family.tensors;
  std::vector<Target> all;
  const auto add = [&](const ProjectionParts& parts, std::initializer_list<std::string_view> words) {
    std::size_t i = 0;
    for (const auto word : words) all.push_back({word, parts.tensors[parts.tensors.size() == 1 ? 0 : i++]});
  };
  add(names.qkv, {"q", "k", "v"});
  add(names.attention_output, {"o"});
  if (layers::up_results(*family.activation) == 2)
    add(names.up, {"gate", "up"});
  else
    add(names.up, {"up"});
  add(names.down, {"down"});
  return all;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (;;) {
    const auto end = text.find(',');
    auto word = text.substr(0, end);
    while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
    while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
    words.emplace_back(word);
    if (end == std::string_view::npos) return words;
    text = text.substr(end + 1);
  }
}

// "self_attn.q_proj" → "q_proj", as PEFT names modules: an end of their names. GPT-2 has two c_proj, of which one may be meant.
std::string module_of(const Family& family, std::string_view tensor) {
  const auto end = tensor.substr(tensor.rfind('.') + 1);
  for (const auto& other : targets_of(family))
    if (other.tensor != tensor && other.tensor.substr(other.tensor.rfind('.') + 1) == end) return std::string(tensor);
  return std::string(end);
}

std::string name_in_file(const ParamSpec& param) { return std::string(kPrefix) + param.name; }

std::vector<ParamSpec> adapters_in(const Model& model) {
  std::vector<ParamSpec> all;
  for (const auto& layer : model.layers)
    for (auto& param : layer->params())
      if (layers::is_adapter(param.name)) all.push_back(std::move(param));
  return all;
}

[[noreturn]] void refuse(const fs::path& file, const std::string& why) {
  throw Error(fmt::format("{}: {}", file.string(), why), Exit::usage);
}

// Keys of adapter_config.json whose other values compute something else.
void demand_plain(const fs::path& file, const nlohmann::json& json) {
  if (!json.is_object() || json.value("peft_type", nlohmann::json("LORA")) != "LORA")
    refuse(file, "it is not the configuration of a LoRA adapter (peft_type LORA)");
  for (const auto* const key : {"use_rslora", "use_dora", "lora_bias", "use_qalora"})
    if (const auto at = json.find(key); at != json.end() && *at == true)
      refuse(file, fmt::format("{} is true: terrace trains adapters without it", key));
  for (const auto* const key : {"rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform", "target_parameters",
                                "trainable_token_indices", "alora_invocation_tokens"})
    if (const auto at = json.find(key); at != json.end() && !at->empty() && !at->is_null())
      refuse(file, fmt::format("it has {}: terrace trains adapters of one rank in all blocks", key));
  if (const auto at = json.find("bias"); at != json.end() && *at != "none")
    refuse(file, "its biases are trained (bias): terrace freezes them");
}

void demand_same_settings(const fs::path& file, const nlohmann::json& json, const layers::Adapters& adapters) {
  const auto demand = [&](const char* key, double value, const char* flag) {
    const auto at = json.find(key);
    if (at == json.end() || !at->is_number()) refuse(file, fmt::format("it has no number {}", key));
    if (at->get<double>() != value)
      refuse(file, fmt::format("{} is {}, and this run has {}\n  give --{} {}", key, at->get<double>(), value, flag,
                               at->get<double>()));
  };
  demand("r", static_cast<double>(adapters.rank), "lora-rank");
  demand("lora_alpha", adapters.alpha, "lora-alpha");
}

}  // namespace

layers::Adapters adapters_of(const Family& family, std::int64_t rank, double alpha, std::string_view text) {
  layers::Adapters adapters{.rank = rank, .alpha = alpha, .tensors = {}};
  if (rank == 0) return adapters;
  const auto known = targets_of(family);
  const auto words = words_of(text);
  const bool all = words == std::vector<std::string>{"all"};
  const auto is_target = [&](std::string_view word) { return all || std::ranges::find(words, word) != words.end(); };
  for (const auto& word : words) {
    if (all || std::ranges::find(known, word, &Target::word) != known.end()) continue;
    std::vector<std::string_view> have;
    for (const auto& target : known) have.push_back(target.word);
    throw Error(fmt::format("--lora-targets: {} has no product \"{}\"\n  it has {}; all is each of them", *family.name,
                            printable(word), fmt::join(have, ", ")),
                Exit::usage);
  }
  for (const auto& target : known) {
    if (!is_target(target.word)) continue;
    for (const auto& other : known)
      if (other.tensor == target.tensor && !is_target(other.word))
        throw Error(fmt::format("--lora-targets: {} has {} and {} in one tensor, {}, which has one adapter\n  give both, or "
                                "neither",
                                *family.name, target.word, other.word, target.tensor),
                    Exit::usage);
    if (std::ranges::find(adapters.tensors, target.tensor) == adapters.tensors.end())
      adapters.tensors.emplace_back(target.tensor);
  }
  return adapters;
}

WeightSource adapters_from(const fs::path& directory, const layers::Adapters& adapters, const Model& model) {
  const auto config = directory / kAdapterConfigFile;
  const auto json = parse_json(read_text_file(config));
  demand_plain(config, json);
  demand_same_settings(config, json, adapters);
  auto file = std::make_shared<WeightFiles>(directory / kAdapterWeightsFile);
  std::set<std::string> used;
  for (const auto& param : adapters_in(model)) {
    const auto name = name_in_file(param);
    const auto* const entry = file->find(name);
    if (!entry) refuse(directory / kAdapterWeightsFile, fmt::format("there is no tensor {}\n  give its --lora-targets", name));
    used.insert(name);
    bool same = can_be_read(entry->type) && entry->shape.size() == param.shape.rank();
    for (std::size_t i = 0; same && i < entry->shape.size(); ++i)
      same = entry->shape[i] == static_cast<std::uint64_t>(param.shape[i]);
    if (!same)
      refuse(directory / kAdapterWeightsFile,
             fmt::format("tensor {} does not have the shape {}\n  it is an adapter of another model, or of another rank", name,
                         to_string(param.shape)));
  }
  for (const auto& one : file->files())
    for (const auto& entry : one.entries())
      if (!used.contains(entry.name))
        refuse(directory / kAdapterWeightsFile, fmt::format("this run has no adapter for its tensor \"{}\"\n  give its "
                                                            "--lora-targets",
                                                            printable(entry.name)));
  WeightSource source([file](const ParamSpec& param, std::uint64_t first, TensorView range) {
    const auto n = static_cast<std::size_t>(range.elements());
    const auto name = name_in_file(param);
    switch (range.dtype) {
      case DType::fp64: return file->read(name, first, std::span(range.as<double>(), n));
      case DType::bf16: return file->read(name, first, std::span(range.as<bf16>(), n));
      default: return file->read(name, first, std::span(range.as<float>(), n));
    }
  });
  source.announce = [file](const ParamSpec& param, std::uint64_t first, std::uint64_t elements) {
    file->announce(name_in_file(param), first, elements);
  };
  return source;
}

void write_adapters(const fs::path& directory, const layers::Adapters& adapters, const Family& family, const Model& model,
                    const std::string& base, DType dtype, const ReadRange& read) {
  const auto params = adapters_in(model);
  std::vector<NamedParam> tensors;
  for (const auto& param : params) tensors.push_back({&param, name_in_file(param)});
  write_weight_file(directory / kAdapterWeightsFile, tensors, dtype, read);
  nlohmann::json modules = nlohmann::json::array();
  for (const auto& tensor : adapters.tensors) modules.push_back(module_of(family, tensor));
  const nlohmann::json json{{"peft_type", "LORA"},
                            {"task_type", "CAUSAL_LM"},
                            {"base_model_name_or_path", base},
                            {"r", adapters.rank},
                            {"lora_alpha", adapters.alpha},
                            {"lora_dropout", 0.0},
                            {"target_modules", modules},
                            {"bias", "none"},
                            {"fan_in_fan_out", *family.matrices == layers::MatrixOrder::in_out},
                            {"init_lora_weights", true},
                            {"inference_mode", true}};
  replace_text_file(directory / kAdapterConfigFile, json.dump(2) + "\n", Durable::yes);
}

MergedWeights::MergedWeights(const layers::Adapters& adapters, const Family& family, const Model& model, DType dtype,
                             ReadRange read, ThreadPool& pool)
    : adapters_(adapters), family_(family), dtype_(dtype), read_(std::move(read)), pool_(pool) {
  for (auto& param : adapters_in(model)) params_.emplace(param.name, param);
}

const ParamSpec* MergedWeights::adapter_of(const ParamSpec& param, std::string_view which) const {
  constexpr std::string_view kWeight = ".weight";
  if (!param.name.ends_with(kWeight)) return nullptr;
  const auto tensor = param.name.substr(0, param.name.size() - kWeight.size());
  const auto at = params_.find(layers::weight_name(tensor + std::string(which)));
  return at == params_.end() ? nullptr : &at->second;
}

std::vector<ParamSpec> MergedWeights::parts_of(const ParamSpec& param) const {
  std::vector<ParamSpec> parts;
  for (const auto which : {layers::kAdapterA, layers::kAdapterB})
    if (const auto* const adapter = adapter_of(param, which)) parts.push_back(*adapter);
  parts.push_back(param);
  return parts;
}

std::vector<double> MergedWeights::numbers_of(const ParamSpec& param) const {
  const auto count = param.shape.elements();
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size_of(dtype_));
  const TensorView view{bytes.data(), dtype_, {count}};
  read_(param, 0, view);
  std::vector<double> numbers(static_cast<std::size_t>(count));
  widen(numbers, view);
  return numbers;
}

void MergedWeights::operator()(const ParamSpec& param, std::uint64_t first, TensorView range) {
  const auto* const a = adapter_of(param, layers::kAdapterA);
  if (!a) return read_(param, first, range);
  if (loaded_ != param.name) {
    const auto& b = *adapter_of(param, layers::kAdapterB);
    const bool out_in = *family_.matrices == layers::MatrixOrder::out_in;
    right_ = numbers_of(*a);  // [rank, inputs]
    left_ = numbers_of(b);    // [outputs, rank]
    columns_ = out_in ? a->shape[1] : b.shape[0];
    if (!out_in) {
      auto left = transposed(right_, a->shape[1]);
      right_ = transposed(left_, adapters_.rank);
      left_ = std::move(left);
    }
    loaded_ = param.name;
  }
  read_(param, first, range);
  add_low_rank(pool_, range, static_cast<std::int64_t>(first),
               {.left = left_,
                .right = right_,
                .rank = adapters_.rank,
                .columns = columns_,
                .scale = adapters_.alpha / static_cast<double>(adapters_.rank)});
}

}  // namespace terrace::lm
