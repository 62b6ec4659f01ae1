#include <terrace/examples/lm/models/adapters.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/models/adapter_config.h>
#include <terrace/examples/lm/models/expert_adapters.h>
#include <terrace/examples/lm/weights/low_rank_sum.h>
#include <terrace/examples/lm/weights/weight_files.h>
#include <terrace/parallel/layers/parts/names.h>

namespace terrace::lm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "base_model.model.";  // the prefix of PEFT's tensor names
constexpr std::string_view kWeight = ".weight";

// A name for one result of a block's products, and the tensor that contains this result.
struct Target {
  std::string_view word, tensor;
};

// Adapters of experts use the transformer's own names (parallel/layers/parts/names.h).
std::vector<Target> targets_of(const Family& family, bool experts) {
  const auto& names = family.tensors;
  std::vector<Target> all;
  const auto add = [&](const ProjectionParts& parts, std::initializer_list<std::string_view> words) {
    std::size_t i = 0;
    for (const auto word : words) all.push_back({word, parts.tensors[parts.tensors.size() == 1 ? 0 : i++]});
  };
  add(names.qkv, {"q", "k", "v"});
  add(names.attention_output, {"o"});
  if (experts) {
    if (layers::up_results(*family.activation) == 2) all.push_back({"gate", layers::kExpertsUp});
    all.push_back({"up", layers::kExpertsUp});
    all.push_back({"down", layers::kExpertsDown});
    return all;
  }
  if (layers::up_results(*family.activation) == 2)
    add(names.up, {"gate", "up"});
  else
    add(names.up, {"up"});
  add(names.down, {"down"});
  return all;
}

// Also accepts PEFT's names: "q_proj" becomes "q", "all-linear" becomes "all".
std::vector<std::string> words_of(std::string_view text) {
  constexpr std::string_view kOfPeft = "_proj";
  std::vector<std::string> words;
  for (;;) {
    const auto end = text.find(',');
    auto word = text.substr(0, end);
    while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
    while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
    if (word.ends_with(kOfPeft)) word.remove_suffix(kOfPeft.size());
    words.emplace_back(word == "all-linear" ? "all" : word);
    if (end == std::string_view::npos) return words;
    text = text.substr(end + 1);
  }
}

// "self_attn.q_proj" → "q_proj": PEFT matches module names by their ends. If two tensors have the same end (GPT-2's two
// c_proj), returns the full name.
std::string module_of(const Family& family, std::string_view tensor) {
  const auto end = tensor.substr(tensor.rfind('.') + 1);
  for (const auto& other : targets_of(family, false))
    if (other.tensor != tensor && other.tensor.substr(other.tensor.rfind('.') + 1) == end) return std::string(tensor);
  return std::string(end);
}

// The prefix of expert tensors in Hugging Face's library, the same for all families with experts.
constexpr std::string_view kLibraryExperts = "mlp.experts.";

std::string name_in_file(const ParamSpec& param) { return std::string(kPrefix) + param.name; }

std::vector<AdapterTensor> tensors_of(const Model& model, const layers::Adapters& adapters, const Family& family) {
  return adapter_tensors(model, adapters, *family.tensors.experts.experts, kLibraryExperts);
}

// Module names such as "model.layers.0.self_attn.q_proj", without duplicates. Experts are left out: PEFT treats them as
// parameters.
std::vector<std::string> modules_of(const std::vector<AdapterTensor>& tensors) {
  std::vector<std::string> modules;
  const auto ending = layers::weight_name(layers::kAdapterA);
  for (const auto& tensor : tensors)
    if (const auto& name = tensor.whole.name; name.ends_with(ending) && name.find(kLibraryExperts) == std::string::npos)
      modules.push_back(name.substr(0, name.size() - ending.size()));
  return modules;
}

// "experts.down_proj" → "mlp.experts.down_proj".
std::string library_parameter(std::string_view target) {
  return std::string(kLibraryExperts) + std::string(target.substr(target.find('.') + 1));
}
bool is_of_experts(std::string_view target) { return target == layers::kExpertsUp || target == layers::kExpertsDown; }

[[noreturn]] void refuse(const fs::path& file, const std::string& why) {
  throw base::Refused(fmt::format("{}: {}", file.string(), why));
}

}  // namespace

layers::Adapters adapters_of(const Family& family, bool experts, std::int64_t rank, double alpha, std::string_view text) {
  layers::Adapters adapters{.rank = rank, .alpha = alpha, .tensors = {}};
  if (rank == 0) return adapters;
  const auto known = targets_of(family, experts);
  const auto words = words_of(text);
  const bool all = words == std::vector<std::string>{"all"};
  const auto is_target = [&](std::string_view word) { return all || std::ranges::find(words, word) != words.end(); };
  for (const auto& word : words) {
    if (all || std::ranges::find(known, word, &Target::word) != known.end()) continue;
    std::vector<std::string_view> have;
    for (const auto& target : known) have.push_back(target.word);
    throw base::Refused(fmt::format("--lora-targets: {} has no product \"{}\"\n  it has {}; all is each of them", *family.name,
                                    base::printable(word), fmt::join(have, ", ")));
  }
  for (const auto& target : known) {
    if (!is_target(target.word)) continue;
    for (const auto& other : known)
      if (other.tensor == target.tensor && !is_target(other.word))
        throw base::Refused(
            fmt::format("--lora-targets: {} has {} and {} in one tensor, {}, which has one adapter\n  give both, or "
                        "neither",
                        *family.name, target.word, other.word, target.tensor));
    if (std::ranges::find(adapters.tensors, target.tensor) == adapters.tensors.end())
      adapters.tensors.emplace_back(target.tensor);
  }
  return adapters;
}

AdapterSettings adapter_settings(const fs::path& directory, const Family& family, bool experts) {
  const auto numbers = adapter_numbers(directory / kAdapterConfigFile);
  const WeightFiles file(directory / kAdapterWeightsFile);
  const auto has = [&](const std::string& tensor) {
    const auto name = fmt::format(".{}{}.", tensor, layers::kAdapterA);
    return std::ranges::any_of(file.files(), [&](const auto& one) {
      return std::ranges::any_of(one.entries(), [&](const auto& entry) { return entry.name.find(name) != std::string::npos; });
    });
  };
  std::vector<std::string_view> words;
  for (const auto& target : targets_of(family, experts))
    if (is_of_experts(target.tensor) ? numbers.of_experts.contains(library_parameter(target.tensor))
                                     : has(std::string(target.tensor)))
      words.push_back(target.word);
  if (words.empty())
    refuse(directory / kAdapterWeightsFile, fmt::format("it has no adapters of the products of {}", *family.name));
  return {numbers.rank, numbers.alpha, fmt::format("{}", fmt::join(words, ","))};
}

WeightSource adapters_from(const fs::path& directory, const layers::Adapters& adapters, const Family& family,
                           const Model& model, const IoChoice& io) {
  std::set<std::string> of_experts;
  for (const auto& target : adapters.tensors)
    if (is_of_experts(target)) of_experts.insert(library_parameter(target));
  demand_adapter_config(directory / kAdapterConfigFile, adapters.rank, adapters.alpha, of_experts);
  auto file = std::make_shared<WeightFiles>(directory / kAdapterWeightsFile, io);
  std::set<std::string> used;
  const auto tensors = std::make_shared<const std::vector<AdapterTensor>>(tensors_of(model, adapters, family));
  for (const auto& tensor : *tensors) {
    const auto& param = tensor.whole;
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
                                                            base::printable(entry.name)));
  demand_adapted_modules(directory / kAdapterConfigFile, modules_of(*tensors));
  std::map<std::string, std::pair<const AdapterTensor*, std::size_t>> places;
  for (const auto& tensor : *tensors)
    for (std::size_t part = 0; part < tensor.parts.size(); ++part) places[tensor.parts[part].name] = {&tensor, part};
  WeightSource source([file, tensors, places](const ParamSpec& param, std::uint64_t first, TensorView range) {
    const auto& [tensor, part] = places.at(param.name);
    const auto name = name_in_file(tensor->whole);
    read_part(*tensor, part, first, range, [&](std::uint64_t from, TensorView some) {
      const auto n = static_cast<std::size_t>(some.elements());
      switch (some.dtype) {
        case DType::fp64: return file->read(name, from, std::span(some.as<double>(), n));
        case DType::bf16: return file->read(name, from, std::span(some.as<bf16>(), n));
        default: return file->read(name, from, std::span(some.as<float>(), n));
      }
    });
  });
  source.announce = [file, tensors, places](const ParamSpec& param, std::uint64_t first, std::uint64_t elements) {
    const auto& tensor = *places.at(param.name).first;
    if (tensor.parts.size() == 1) file->announce(name_in_file(tensor.whole), first, elements);
  };
  return source;
}

void write_adapters(const fs::path& directory, const layers::Adapters& adapters, const Family& family, const Model& model,
                    const std::string& base, DType dtype, const ReadRange& read, const IoChoice& io) {
  const auto tensors = tensors_of(model, adapters, family);
  std::vector<NamedParam> named;
  std::map<std::string, const AdapterTensor*> by_name;
  for (const auto& tensor : tensors) {
    named.push_back({&tensor.whole, name_in_file(tensor.whole)});
    by_name[tensor.whole.name] = &tensor;
  }
  write_weight_file(
      directory / kAdapterWeightsFile, named, dtype,
      [&](const ParamSpec& param, std::uint64_t first, TensorView range) {
        read_whole(*by_name.at(param.name), first, range, read);
      },
      io);
  nlohmann::json modules = nlohmann::json::array(), parameters = nlohmann::json::array();
  for (const auto& target : adapters.tensors)
    if (is_of_experts(target))
      parameters.push_back(library_parameter(target));
    else
      modules.push_back(module_of(family, target));
  nlohmann::json json{{"peft_type", "LORA"},
                      {"task_type", "CAUSAL_LM"},
                      {"base_model_name_or_path", base},
                      {"r", adapters.rank},
                      {"lora_alpha", adapters.alpha},
                      {"lora_dropout", 0.0},
                      {"bias", "none"},
                      {"fan_in_fan_out", *family.matrices == layers::MatrixOrder::in_out},
                      {"init_lora_weights", true},
                      {"inference_mode", true}};
  if (!modules.empty()) json["target_modules"] = modules;
  if (!parameters.empty()) json["target_parameters"] = parameters;  // unknown to older versions of PEFT
  replace_text_file(directory / kAdapterConfigFile, json.dump(2) + "\n", files::Durable::yes);
}

MergedWeights::MergedWeights(const layers::Adapters& adapters, const Family& family, const Model& model, DType dtype,
                             ReadRange read, ThreadPool& pool)
    : adapters_(adapters), family_(family), dtype_(dtype), read_(std::move(read)), pool_(pool) {
  for (const auto& layer : model.layers)
    for (auto& param : layer->params())
      if (layers::is_adapter(param.name)) params_.emplace(param.name, std::move(param));
}

const ParamSpec* MergedWeights::adapter_of(const ParamSpec& param, std::string_view which) const {
  if (!param.name.ends_with(kWeight)) return nullptr;
  const auto at = params_.find(layers::weight_name(place_of(param).tensor + std::string(which)));
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

// An adapter of an expert's first products (gate, up) changes both; their outputs follow one another in its rows.
MergedWeights::Place MergedWeights::place_of(const ParamSpec& param) const {
  const auto& experts = family_.tensors.experts;
  const auto tensor = param.name.substr(0, param.name.size() - kWeight.size());
  const auto product = tensor.rfind('.') + 1;
  const auto own = tensor.substr(product);
  if (tensor.find("." + std::string(*experts.experts)) == std::string::npos) return {tensor, 0};
  const auto* const up = std::ranges::find(experts.up, own);
  const bool out_in = *family_.matrices == layers::MatrixOrder::out_in;
  if (up == experts.up.end()) return {tensor.substr(0, product) + std::string(layers::kExpertDown), 0};
  return {tensor.substr(0, product) + std::string(layers::kExpertUp), (up - experts.up.begin()) * param.shape[out_in ? 0 : 1]};
}

void MergedWeights::operator()(const ParamSpec& param, std::uint64_t first, TensorView range) {
  const auto* const a = adapter_of(param, layers::kAdapterA);
  if (!a) return read_(param, first, range);
  if (loaded_ != param.name) {
    const bool out_in = *family_.matrices == layers::MatrixOrder::out_in;
    const auto outputs = param.shape[out_in ? 0 : 1];
    const auto all = numbers_of(*adapter_of(param, layers::kAdapterB));  // [outputs of the whole adapter, rank]
    const auto begin = all.begin() + place_of(param).first_output * adapters_.rank;
    right_ = numbers_of(*a);  // [rank, inputs]
    left_.assign(begin, begin + outputs * adapters_.rank);
    columns_ = out_in ? a->shape[1] : outputs;
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
