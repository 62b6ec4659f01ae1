#include <terrace/examples/terrace/commands/export_command.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/folders.h>
#include <terrace/core/base/json_text.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/models/fine_tuning.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/lm/models/model_dir.h>
#include <terrace/examples/lm/weights/weight_files.h>
#include <terrace/examples/terrace/base/environment.h>
#include <terrace/examples/terrace/base/folder_mark.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/parallel/map/parameter_layout.h>
#include <terrace/parallel/model/freeze.h>
#include <terrace/parallel/state/committed_state.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUnfinished = "unfinished-export";  // in a directory until the export is complete

// "model-00001-of-00002.safetensors"
bool is_shard(std::string_view name) {
  constexpr std::string_view kBegin = "model-", kOf = "-of-", kEnd = ".safetensors";
  if (name.size() <= kBegin.size() + kEnd.size() || !name.starts_with(kBegin) || !name.ends_with(kEnd)) return false;
  name = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
  const auto of = name.find(kOf);
  const auto is_number = [](std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  return of != std::string_view::npos && is_number(name.substr(0, of)) && is_number(name.substr(of + kOf.size()));
}

// Whether an export makes such a file, finished or not.
bool is_exported(const fs::directory_entry& entry) {
  if (!fs::is_regular_file(entry.symlink_status())) return false;
  const auto whole = entry.path().filename().string();
  const auto name = files::finished_name(whole);
  for (const auto* const made : {kUnfinished, lm::kModelConfigFile, lm::kWeightsFile, lm::kWeightsIndex,
                                 lm::kAdapterWeightsFile, lm::kAdapterConfigFile})
    if (name == made) return true;
  return is_shard(name) || std::ranges::count(lm::kTokenizerFiles, name) != 0;
}

// Accepts a new or empty directory, or one with the mark of an unfinished export. Any other directory that has files is
// refused. Returns its lock, because another export into it would remove the files of this one.
files::FileHandle begin_directory(const fs::path& to) {
  std::error_code error;
  if (fs::exists(to, error) && !fs::is_directory(to, error))
    throw base::Refused(fmt::format("{} is a file\n  give a new directory", to.string()));
  try {
    files::make_folders(to);
  } catch (const Error& why) {
    throw Error(
        fmt::format("{} cannot be made: {}\n  give a directory on a file system that can be written", to.string(), why.what()));
  }
  auto lock = lock_directory(to, "a new directory");
  const auto entries = files::entries_of(to);
  // Older versions first made the mark under a temporary name.
  const bool marked = is_marked(to, kUnfinished) || is_marked(to, "unfinished-export.tmp");
  if (!entries.empty() && !marked) {
    auto name = entries.front().path().filename().string();
    if (fs::exists(to / lm::kModelConfigFile, error)) name = lm::kModelConfigFile;
    throw base::Refused(fmt::format("{} has \"{}\" already\n  give a new directory", to.string(), base::printable(name)));
  }
  if (const auto foreign = std::ranges::find_if_not(entries, is_exported); foreign != entries.end())
    throw base::Refused(
        fmt::format("{} has an unfinished export, but also \"{}\", which no export makes\n  move that away, or give a new "
                    "directory",
                    to.string(), base::printable(foreign->path().filename().string())));
  mark_folder(to, kUnfinished, "terrace ckpt export has not finished here: repeat the command\n");
  // The unfinished export may have put weights into other files than this one will.
  for (const auto& entry : entries)
    if (entry.path().filename() != kUnfinished) files::remove_path(entry.path());
  return lock;
}

// Refuses the model's own directory: the export would overwrite files that it reads.
void demand_other_directory(const fs::path& to, const RunConfig& config) {
  std::error_code error;
  for (const auto& read : {config.run.init_from, config.run.init_adapter}) {
    const auto directory = fs::is_regular_file(read, error) ? fs::absolute(read).parent_path() : fs::path(read);
    if (!read.empty() && fs::equivalent(to, directory, error))
      throw base::Refused(fmt::format("{} is the directory that the run began with\n  give a new directory", to.string()));
  }
}

nlohmann::json base_of(const RunConfig& config) {
  std::error_code error;
  const auto file = fs::path(config.run.init_from) / lm::kModelConfigFile;
  if (config.run.init_from.empty() || !fs::is_regular_file(file, error)) return {};
  try {
    return base::parse_json(read_text_file(file));
  } catch (const Error& why) {
    throw Error(fmt::format("{}: {}\n  bring the file back as it was when the run began", file.string(), why.what()),
                ErrorKind::corrupt);
  }
}

// Copies the tokenizer that the run keeps or, for a run of bytes, the tokenizer files beside the weights that it began with.
void copy_files(const fs::path& run, const RunConfig& config, const fs::path& to) {
  std::error_code error;
  const auto kept = tokenizer_folder(run);
  const auto from = fs::is_directory(kept, error) ? kept : fs::path(config.run.init_from);
  if (fs::is_directory(from, error)) lm::write_tokenizer_files(to, lm::read_tokenizer_files(from));
}

std::set<std::string> frozen_names(const mapping::ParameterLayout& layout) {
  std::set<std::string> names;
  for (std::uint32_t l = 0; l < layout.layers(); ++l)
    for (const auto& param : layout.params(l))
      if (param.frozen) names.insert(param.name);
  return names;
}

// A frozen fp16 weight has no master, so it is read as it is and widened.
void read_widened(state::CommittedState& state, const ParamSpec& param, std::uint64_t first, TensorView range) {
  std::vector<fp16> narrow(static_cast<std::size_t>(range.elements()));
  state.read(param, first, {reinterpret_cast<std::byte*>(narrow.data()), DType::fp16, range.shape});
  std::transform(narrow.begin(), narrow.end(), range.as<float>(), [](fp16 x) { return static_cast<float>(x); });
}

// Announces what is read for the model's files, in the order in which it is written.
void announce(state::CommittedState& state, const Model& written, const std::function<ChunkKind(const ParamSpec&)>& kind_of,
              const std::function<std::vector<ParamSpec>(const ParamSpec&)>& parts_of) {
  std::vector<state::CommittedState::Tensor> tensors;
  for (const auto& layer : written.layers)
    for (const auto& param : layer->params()) {
      if (param.tied) continue;
      for (const auto& part : parts_of(param))
        tensors.push_back({kind_of(part), part.name, static_cast<std::uint64_t>(part.shape.elements())});
    }
  state.announce(tensors);
}

std::vector<ParamSpec> itself(const ParamSpec& param) { return {param}; }

}  // namespace

void write_committed_weights(state::CommittedState& state, const Model& model, DType dtype, const fs::path& to) {
  announce(
      state, model, [](const ParamSpec&) { return ChunkKind::parameter; }, itself);
  lm::write_weight_files(
      to, model, dtype, kMostFileBytes,
      [&](const ParamSpec& param, std::uint64_t first, TensorView range) { state.read(param, first, range); },
      io_of_environment());
}

namespace {

void export_into(const fs::path& run, std::span<const fs::path> given, const fs::path& to, Adapted adapted) {
  RunConfig config;
  apply_file(config, run / kConfigFile);
  demand_settings_of_run(run, config);
  auto stores = stores_of_run(run, given);
  for (auto& store : stores) store.read_only = true;
  config.parallel.dp = config.parallel.pp = config.parallel.tp = config.parallel.cp = config.parallel.ep =
      config.parallel.tp_depth = 1;  // the whole model
  config.parallel.shard_group = 0;
  config.parallel.sp = false;
  config.parallel.tp_mode = TensorMode::line;
  config.parallel.tp_overlap = config.model.vocab_tiles = config.model.mlp_tiles = config.model.mlp_row_tiles =
      config.model.attention_tiles = 1;
  const auto sizes = model_config(config);
  // fp16 weights are rounded copies of fp32 masters.
  const bool from_master = sizes.dtype == DType::fp16;
  const auto dtype = from_master ? DType::fp32 : sizes.dtype;
  const auto& adapters = sizes.adapters;
  if (adapted == Adapted::merged && adapters.rank == 0)
    throw base::Refused("--merge: the run has no adapters\n  leave out --merge, which writes the whole model");
  const auto without = lm::without_adapters(sizes);
  const auto json = lm::model_config_json(without, dtype, base_of(config));
  const auto model = lm::make_model(sizes);
  const mapping::ParameterLayout layout(model, {}, 0, 1, model::parse_freeze(config.train.freeze));
  const auto frozen = frozen_names(layout);

  demand_intact_tokenizer(run);
  demand_other_directory(to, config);
  state::CommittedState state(stores);
  const auto lock = begin_directory(to);
  std::uint64_t elements = 0;
  const auto kind_of = [&](const ParamSpec& param) {
    return from_master && !frozen.contains(param.name) ? ChunkKind::master : ChunkKind::parameter;
  };
  const auto read = [&](const ParamSpec& param, std::uint64_t first, TensorView range) {
    if (from_master && kind_of(param) == ChunkKind::parameter)
      read_widened(state, param, first, range);
    else
      state.read(param, first, range, kind_of(param));
  };
  const auto counted = [&](lm::ReadRange weights) -> lm::ReadRange {
    return [&elements, weights = std::move(weights)](const ParamSpec& param, std::uint64_t first, TensorView range) {
      weights(param, first, range);
      elements += static_cast<std::uint64_t>(range.elements());
    };
  };
  if (adapters.rank != 0 && adapted == Adapted::alone) {
    lm::write_adapters(to, adapters, sizes.family, model, config.run.init_from, dtype, counted(read), io_of_environment());
  } else {
    if (adapters.rank == 0) {
      announce(state, model, kind_of, itself);
      lm::write_weight_files(to, model, dtype, kMostFileBytes, counted(read), io_of_environment());
    } else {
      ThreadPool pool(static_cast<int>(config.run.threads));
      const auto merged_model = lm::make_model(without);
      const lm::MergedWeights merged(adapters, sizes.family, model, dtype, read, pool);
      announce(state, merged_model, kind_of, [&](const ParamSpec& param) { return merged.parts_of(param); });
      lm::write_weight_files(to, merged_model, dtype, kMostFileBytes, counted(merged), io_of_environment());
    }
    copy_files(run, config, to);
    replace_text_file(to / lm::kModelConfigFile, json.dump(2) + "\n", files::Durable::yes);
  }
  unmark_folder(to, kUnfinished);
  fmt::print("exported {} parameters after step {} to {}, {} of {}\n", elements, state.commit().step, to.string(),
             format_bytes(elements * size_of(dtype)), name_of(dtype));
}

}  // namespace

void export_model(const fs::path& run, std::span<const fs::path> given, const fs::path& to, Adapted adapted) try {
  export_into(run, given, to, adapted);
} catch (const Error& error) {
  const bool advises = std::string_view(error.what()).find('\n') != std::string_view::npos;
  if (advises || error.kind() != ErrorKind::failed) throw;
  throw Error(fmt::format("{}\n  the run is as it was: remove the cause, then repeat the command", error.what()));
}

}  // namespace terrace::cli
