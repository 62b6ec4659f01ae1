#include <terrace/examples/terrace/export_command.h>

#include <array>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/error.h>
#include <terrace/core/json_text.h>
#include <terrace/core/printable.h>
#include <terrace/core/text_file.h>
#include <terrace/core/units.h>
#include <terrace/examples/lm/model.h>
#include <terrace/examples/lm/model_dir.h>
#include <terrace/examples/lm/weight_files.h>
#include <terrace/examples/terrace/command_line.h>
#include <terrace/examples/terrace/options.h>
#include <terrace/examples/terrace/run_dir.h>
#include <terrace/examples/terrace/setup.h>
#include <terrace/parallel/committed_state.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostFileBytes = 5'000'000'000;  // as the library cuts
// What belongs to a model beside its weights, copied from the directory that the run began with.
constexpr std::array kCopied{"generation_config.json",  "tokenizer.json",    "tokenizer_config.json",
                             "tokenizer.model",         "vocab.json",        "merges.txt",
                             "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"};

constexpr const char* kUnfinished = "unfinished-export";  // in a directory until all is there

// A new or empty directory, or one that an export has marked and did not finish: whatever else has files is not touched.
void begin_directory(const fs::path& to) {
  std::error_code error;
  fs::create_directories(to, error);
  if (!fs::is_directory(to, error))
    throw Error(fmt::format("{} cannot be made\n  give a new directory", to.string()), Exit::usage);
  if (!fs::is_empty(to) && !fs::is_regular_file(fs::symlink_status(to / kUnfinished))) {
    auto name = fs::directory_iterator(to)->path().filename().string();
    if (fs::exists(to / lm::kModelConfigFile)) name = lm::kModelConfigFile;
    throw Error(fmt::format("{} has \"{}\" already\n  give a new directory", to.string(), printable(name)), Exit::usage);
  }
  replace_text_file(to / kUnfinished, "terrace ckpt export has not finished here: repeat the command\n", Durable::yes);
  // Weights of an unfinished export may be in other files than those of this one.
  for (const auto& entry : fs::directory_iterator(to))
    if (entry.is_regular_file() && entry.path().filename() != kUnfinished) fs::remove(entry.path());
}

nlohmann::json base_of(const RunConfig& config) {
  std::error_code error;
  const auto file = fs::path(config.init_from) / lm::kModelConfigFile;
  if (config.init_from.empty() || !fs::is_regular_file(file, error)) return {};
  return parse_json(read_text_file(file));
}

void copy_files(const RunConfig& config, const fs::path& to) {
  std::error_code error;
  if (config.init_from.empty() || !fs::is_directory(config.init_from, error)) return;
  for (const auto* const name : kCopied)
    if (const auto file = fs::path(config.init_from) / name; fs::is_regular_file(file, error)) fs::copy_file(file, to / name);
}

}  // namespace

void export_model(const fs::path& run, const fs::path& to) {
  RunConfig config;
  apply_file(config, run / kConfigFile);
  demand_settings_of_run(run, config);
  auto stores = stores_of_run(run);
  for (auto& store : stores) store.read_only = true;
  config.dp = config.pp = config.tp = config.cp = config.ep = config.tp_depth = 1;  // the whole model
  config.sp = false;
  config.tp_mode = "1d";
  config.tp_overlap = config.vocab_tiles = config.mlp_tiles = config.mlp_row_tiles = config.attention_tiles = 1;
  const auto sizes = model_config(config);
  // fp16 weights are rounded copies of fp32 masters.
  const bool from_master = sizes.dtype == DType::fp16;
  const auto dtype = from_master ? DType::fp32 : sizes.dtype;
  const auto json = lm::model_config_json(sizes, dtype, base_of(config));

  CommittedState state(stores);
  begin_directory(to);
  std::uint64_t elements = 0;
  lm::write_weight_files(to, lm::make_model(sizes), dtype, kMostFileBytes,
                         [&](const ParamSpec& param, std::uint64_t first, TensorView range) {
                           state.read(param, first, range, from_master ? Kind::master : Kind::parameter);
                           elements += static_cast<std::uint64_t>(range.elements());
                         });
  copy_files(config, to);
  replace_text_file(to / lm::kModelConfigFile, json.dump(2) + "\n", Durable::yes);
  fs::remove(to / kUnfinished);
  fmt::print("exported {} parameters after step {} to {}, {} of {}\n", elements, state.commit().step, to.string(),
             format_bytes(elements * size_of(dtype)), name_of(dtype));
}

}  // namespace terrace::cli
