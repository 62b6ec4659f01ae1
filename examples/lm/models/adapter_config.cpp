#include <terrace/examples/lm/models/adapter_config.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/fetched_file.h>
#include <terrace/core/base/json_text.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/models/config_reader.h>

namespace terrace::lm {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_file(const fs::path& file, const std::string& why, ErrorKind kind = ErrorKind::refused) {
  throw Error(fmt::format("{}: {}", file.string(), why), kind, {.path = file.string()});
}

nlohmann::json adapter_object(const fs::path& file) {
  files::demand_fetched(file);
  std::string text;
  try {
    text = read_text_file(file);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}\n  give a directory that PEFT wrote", file.string(), error.what()), ErrorKind::refused,
                error.facts());
  }
  constexpr const char* kMend = "bring the file back as PEFT wrote it";
  nlohmann::json json;
  try {
    json = base::parse_json(text);
  } catch (const Error& error) {
    refuse_file(file, fmt::format("{}\n  {}", error.what(), kMend), ErrorKind::corrupt);
  }
  if (!json.is_object()) refuse_file(file, fmt::format("it is no JSON object\n  {}", kMend), ErrorKind::corrupt);
  return json;
}

// Refuses keys whose values change the computation in a way that terrace does not support.
void demand_plain(const fs::path& file, const nlohmann::json& json) {
  if (json.value("peft_type", nlohmann::json("LORA")) != "LORA")
    refuse_file(file, "it is not the configuration of a LoRA adapter (peft_type LORA)");
  for (const auto* const key : {"use_dora", "lora_bias", "use_qalora"})
    if (const auto at = json.find(key); at != json.end() && !at->is_null() && *at != false)
      refuse_file(file, fmt::format("{} is {}: terrace trains adapters without it", key, *at == true ? "true" : "not false"));
  for (const auto* const key : {"rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform",
                                "trainable_token_indices", "alora_invocation_tokens"})
    if (const auto at = json.find(key); at != json.end() && !at->empty() && !at->is_null())
      refuse_file(file, fmt::format("it has {}: terrace trains adapters of one rank in all blocks", key));
  if (const auto at = json.find("bias"); at != json.end() && *at != "none")
    refuse_file(file, "its biases are trained (bias): terrace freezes them");
}

// Initializations that leave the base weights unchanged. With any other (PiSSA, OLoRA, CorDA, LoRA-GA, LoftQ) PEFT subtracts
// the initial adapter from the base weights, so the trained adapter belongs to a base that exists in no file.
constexpr std::array<std::string_view, 4> kInitsOfTheBase{"gaussian", "eva", "orthogonal", "mica"};

void demand_same_base(const fs::path& file, const nlohmann::json& json) {
  const auto at = json.find("init_lora_weights");
  if (at == json.end() || at->is_null() || at->is_boolean()) return;
  if (at->is_string() && std::ranges::count(kInitsOfTheBase, at->get<std::string>()) != 0) return;
  refuse_file(
      file, fmt::format("init_lora_weights is {}, with which PEFT changes the weights of the base: it is no adapter of "
                        "the base as it is\n  write it in PEFT with save_pretrained(…, "
                        "path_initial_model_for_weight_conversion=…), which makes it one; if --model is the changed base, set "
                        "init_lora_weights to true in a copy of the file",
                        ConfigReader::shown(*at)));
}

// Keys that this file checks, and keys that do not affect a finished adapter: its origin and how it was trained.
constexpr std::array<std::string_view, 34> kKnown{"peft_type",
                                                  "task_type",
                                                  "auto_mapping",
                                                  "peft_version",
                                                  "base_model_name_or_path",
                                                  "revision",
                                                  "inference_mode",
                                                  "r",
                                                  "lora_alpha",
                                                  "lora_dropout",
                                                  "target_modules",
                                                  "exclude_modules",
                                                  "target_parameters",
                                                  "fan_in_fan_out",
                                                  "bias",
                                                  "init_lora_weights",
                                                  "use_rslora",
                                                  "use_dora",
                                                  "lora_bias",
                                                  "use_qalora",
                                                  "qalora_group_size",
                                                  "rank_pattern",
                                                  "alpha_pattern",
                                                  "modules_to_save",
                                                  "layers_to_transform",
                                                  "layers_pattern",
                                                  "trainable_token_indices",
                                                  "alora_invocation_tokens",
                                                  "megatron_config",
                                                  "megatron_core",
                                                  "loftq_config",
                                                  "eva_config",
                                                  "corda_config",
                                                  "lora_ga_config"};

// True for the values that PEFT writes for unused settings.
bool is_unused(const nlohmann::json& value) {
  return value.is_null() || value == false || value == "" || (value.is_structured() && value.empty());
}

void demand_nothing_else(const fs::path& file, const nlohmann::json& json) {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : json.items())
    if (std::ranges::count(kKnown, key) == 0 && !is_unused(value))
      unknown.push_back(fmt::format("{} ({})", base::printable(key), ConfigReader::shown(value)));
  if (!unknown.empty())
    refuse_file(file,
                fmt::format("it has what terrace does not know: {}\n  if that changes nothing of what the adapter computes, "
                            "take it out of a copy of the file",
                            fmt::join(unknown, ", ")));
}

// PEFT's rule: the list has the full name of the module, or the end of the name after a dot.
bool names_module(const nlohmann::json& list, std::string_view module) {
  return std::ranges::any_of(list, [&](const nlohmann::json& one) {
    if (!one.is_string()) return false;
    const auto name = one.get<std::string>();
    return module == name || module.ends_with("." + name);
  });
}

}  // namespace

void demand_adapted_modules(const fs::path& file, std::span<const std::string> modules) {
  const auto json = adapter_object(file);
  const auto list_of = [&](const char* key) {
    const auto at = json.find(key);
    return at == json.end() ? nlohmann::json() : *at;
  };
  const auto targets = list_of("target_modules"), excluded = list_of("exclude_modules");
  // A string is a regular expression or "all-linear". Without either key, PEFT uses its own list for each family.
  const bool none = targets.is_null() && list_of("target_parameters").is_array();
  for (const auto& module : modules)
    if (none || (targets.is_array() && !names_module(targets, module)) ||
        (excluded.is_array() && names_module(excluded, module)))
      refuse_file(file,
                  fmt::format("its modules (target_modules, exclude_modules) are not those of its adapters: PEFT would drop "
                              "that of {}\n  name it there, or take its tensors out of the file of weights",
                              base::printable(module)));
}

namespace {

double number_in(const fs::path& file, const nlohmann::json& json, const char* key) {
  const auto at = json.find(key);
  if (at == json.end() || !at->is_number()) refuse_file(file, fmt::format("it has no number {}", key));
  return at->get<double>();
}

// rsLoRA (Kalajdzievski 2023) divides alpha by the square root of the rank; terrace divides it by the rank.
bool divides_by_root(const fs::path& file, const nlohmann::json& json) {
  const auto told = json.value("use_rslora", nlohmann::json(false));
  if (!told.is_boolean() && !told.is_null()) refuse_file(file, "use_rslora is neither true nor false");
  return told == true;
}

std::set<std::string> parameters_in(const nlohmann::json& json) {
  std::set<std::string> told;
  if (const auto at = json.find("target_parameters"); at != json.end() && at->is_array())
    for (const auto& one : *at) told.insert(one.is_string() ? one.get<std::string>() : ConfigReader::shown(one));
  return told;
}

}  // namespace

AdapterNumbers adapter_numbers(const fs::path& file) {
  const auto json = adapter_object(file);
  demand_plain(file, json);
  const auto rank = number_in(file, json, "r");
  if (!(rank >= 1 && rank <= 65536 && rank == std::floor(rank)))
    refuse_file(file, fmt::format("r is {}, which is no rank", rank));
  return {.rank = static_cast<std::int64_t>(rank),
          .alpha = number_in(file, json, "lora_alpha") * (divides_by_root(file, json) ? std::sqrt(rank) : 1),
          .of_experts = parameters_in(json)};
}

void demand_adapter_config(const fs::path& file, std::int64_t rank, double alpha, const std::set<std::string>& of_experts) {
  const auto json = adapter_object(file);
  demand_plain(file, json);
  demand_same_base(file, json);
  demand_nothing_else(file, json);
  const auto demand = [&](const char* key, double value, const char* flag, double factor = 1) {
    const auto told = number_in(file, json, key);
    if (const auto has = told * factor; has != value)
      refuse_file(
          file, fmt::format("{} is {}{}, and this run has {}\n  give --{} {}", key, told,
                            factor == 1 ? "" : fmt::format(" with use_rslora, which is {} without it", has), value, flag, has));
  };
  demand("r", static_cast<double>(rank), "lora-rank");
  demand("lora_alpha", alpha, "lora-alpha", divides_by_root(file, json) ? std::sqrt(static_cast<double>(rank)) : 1);
  const auto told = parameters_in(json);
  if (told != of_experts)
    refuse_file(file, fmt::format("its parameters of experts (target_parameters) are [{}], and this run's are [{}]\n  give its "
                                  "--lora-targets",
                                  base::printable(fmt::format("{}", fmt::join(told, ", "))), fmt::join(of_experts, ", ")));
}

}  // namespace terrace::lm
