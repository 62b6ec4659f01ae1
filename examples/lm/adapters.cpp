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
#include <terrace/core/printable.h>
#include <terrace/core/text_file.h>
#include <terrace/examples/lm/adapter_config.h>
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

double number_at(const TensorView& view, std::int64_t i) {
  switch (view.dtype) {
    case DType::fp64: return view.as<double>()[i];
    case DType::bf16: return static_cast<float>(view.as<bf16>()[i]);
    default: return view.as<float>()[i];
  }
}

void set_number(const TensorView& view, std::int64_t i, double value) {
  switch (view.dtype) {
    case DType::fp64: view.as<double>()[i] = value; break;
    case DType::bf16: view.as<bf16>()[i] = bf16(static_cast<float>(value)); break;
    default: view.as<float>()[i] = static_cast<float>(value); break;
  }
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

WeightRange adapters_from(const fs::path& directory, const layers::Adapters& adapters, const Model& model) {
  demand_adapter_config(directory / kAdapterConfigFile, adapters.rank, adapters.alpha);
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
  return [file](const ParamSpec& param, std::uint64_t first, TensorView range) {
    const auto n = static_cast<std::size_t>(range.elements());
    const auto name = name_in_file(param);
    switch (range.dtype) {
      case DType::fp64: return file->read(name, first, std::span(range.as<double>(), n));
      case DType::bf16: return file->read(name, first, std::span(range.as<bf16>(), n));
      default: return file->read(name, first, std::span(range.as<float>(), n));
    }
  };
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
                             ReadRange read)
    : adapters_(adapters), family_(family), dtype_(dtype), read_(std::move(read)) {
  for (auto& param : adapters_in(model)) params_.emplace(param.name, param);
}

void MergedWeights::load(const std::string& tensor) {
  if (loaded_ == tensor) return;
  const auto all_of = [&](std::string_view which, std::vector<double>& to) {
    const auto& param = params_.at(layers::weight_name(tensor + std::string(which)));
    const auto count = param.shape.elements();
    std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size_of(dtype_));
    const TensorView view{bytes.data(), dtype_, {count}};
    read_(param, 0, view);
    to.resize(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) to[static_cast<std::size_t>(i)] = number_at(view, i);
    return param.shape;
  };
  inputs_ = all_of(layers::kAdapterA, a_)[1];
  outputs_ = all_of(layers::kAdapterB, b_)[0];
  loaded_ = tensor;
}

void MergedWeights::operator()(const ParamSpec& param, std::uint64_t first, TensorView range) {
  read_(param, first, range);
  if (!param.name.ends_with(".weight")) return;
  const auto tensor = param.name.substr(0, param.name.size() - std::string_view(".weight").size());
  if (!params_.contains(layers::weight_name(tensor + std::string(layers::kAdapterA)))) return;
  load(tensor);
  const double scale = adapters_.alpha / static_cast<double>(adapters_.rank);
  const bool out_in = *family_.matrices == layers::MatrixOrder::out_in;
  const auto columns = out_in ? inputs_ : outputs_;
  for (std::int64_t i = 0; i < range.elements(); ++i) {
    const auto at = static_cast<std::int64_t>(first) + i, row = at / columns, column = at % columns;
    const auto output = out_in ? row : column, input = out_in ? column : row;
    double sum = 0;
    for (std::int64_t k = 0; k < adapters_.rank; ++k)
      sum += b_[static_cast<std::size_t>(output * adapters_.rank + k)] * a_[static_cast<std::size_t>(k * inputs_ + input)];
    set_number(range, i, number_at(range, i) + scale * sum);
  }
}

}  // namespace terrace::lm
