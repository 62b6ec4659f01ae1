#include <terrace/examples/lm/adapter_config.h>

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/error.h>
#include <terrace/core/json_text.h>
#include <terrace/core/printable.h>
#include <terrace/core/text_file.h>

namespace terrace::lm {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_file(const fs::path& file, const std::string& why, Exit exit = Exit::usage) {
  throw Error(fmt::format("{}: {}", file.string(), why), exit);
}

nlohmann::json adapter_object(const fs::path& file) {
  std::string text;
  try {
    text = read_text_file(file);
  } catch (const Error& error) {
    refuse_file(file, fmt::format("{}\n  give a directory that PEFT wrote", error.what()));
  }
  constexpr const char* kMend = "bring the file back as PEFT wrote it";
  nlohmann::json json;
  try {
    json = parse_json(text);
  } catch (const Error& error) {
    refuse_file(file, fmt::format("{}\n  {}", error.what(), kMend), Exit::corrupt);
  }
  if (!json.is_object()) refuse_file(file, fmt::format("it is no JSON object\n  {}", kMend), Exit::corrupt);
  return json;
}

// Keys whose other values compute something else.
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

}  // namespace

void demand_adapter_config(const fs::path& file, std::int64_t rank, double alpha, const std::set<std::string>& of_experts) {
  const auto json = adapter_object(file);
  demand_plain(file, json);
  const auto demand = [&](const char* key, double value, const char* flag, double factor = 1) {
    const auto at = json.find(key);
    if (at == json.end() || !at->is_number()) refuse_file(file, fmt::format("it has no number {}", key));
    if (const auto has = at->get<double>() * factor; has != value)
      refuse_file(
          file, fmt::format("{} is {}{}, and this run has {}\n  give --{} {}", key, at->get<double>(),
                            factor == 1 ? "" : fmt::format(" with use_rslora, which is {} without it", has), value, flag, has));
  };
  demand("r", static_cast<double>(rank), "lora-rank");
  // rsLoRA (Kalajdzievski 2023) divides alpha by the root of the rank, terrace by the rank.
  const auto by_root_told = json.value("use_rslora", nlohmann::json(false));
  if (!by_root_told.is_boolean() && !by_root_told.is_null()) refuse_file(file, "use_rslora is neither true nor false");
  const bool by_root = by_root_told == true;
  demand("lora_alpha", alpha, "lora-alpha", by_root ? std::sqrt(static_cast<double>(rank)) : 1);
  std::set<std::string> told;
  if (const auto at = json.find("target_parameters"); at != json.end() && at->is_array())
    for (const auto& one : *at)
      told.insert(one.is_string() ? one.get<std::string>()
                                  : one.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  if (told != of_experts)
    refuse_file(file, fmt::format("its parameters of experts (target_parameters) are [{}], and this run's are [{}]\n  give its "
                                  "--lora-targets",
                                  printable(fmt::format("{}", fmt::join(told, ", "))), fmt::join(of_experts, ", ")));
}

}  // namespace terrace::lm
