#include <terrace/examples/terrace/run/init_from.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include <terrace/core/base/json_text.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/models/family.h>
#include <terrace/examples/lm/models/fine_tuning.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/lm/models/model_dir.h>
#include <terrace/examples/lm/models/rope_scaling.h>
#include <terrace/examples/lm/models/weights.h>
#include <terrace/examples/lm/weights/weight_files.h>
#include <terrace/examples/terrace/base/environment.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/run/told_windows.h>
#include <terrace/parallel/train/initial_weights.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
using Pointer = nlohmann::json::json_pointer;

// A value of the model that no tensor has.
struct Untold {
  const char* name;
  const char* flag;
  double used;     // what the run uses
  bool given;      // the user has given it, and then decides
  bool varies;     // it differs between models of the family
  lm::Words keys;  // its keys in config.json; --save writes the last word of the first one as metadata
};

std::vector<Untold> untold_of(const RunConfig& c) {
  const auto model = model_config(c);
  const lm::Family& family = model.family;
  std::vector<Untold> all;
  if (const auto* const base = lm::rotary_base(family))
    all.push_back({"rotary base", "rope-base", model.rope_theta, c.model.rope_theta != 0, *base->varies, base->keys});
  const auto& eps = family.norm_eps;
  all.push_back({"norm epsilon", "norm-eps", model.norm_eps, c.model.norm_eps != 0, *eps.varies, eps.keys});
  all.push_back({"number of heads", "heads", static_cast<double>(c.model.heads), false, true, family.heads_keys});
  return all;
}

// What the file says about its model, and where: its metadata, then config.json.
struct ToldSource {
  std::string name;
  nlohmann::json values;
  bool flat;  // numbers are under the last word of their first key, as --save writes them
};

std::vector<ToldSource> sources_of(const fs::path& file) {
  ToldSource own{"its metadata", nlohmann::json::object(), true};
  const lm::WeightFiles weights(file);
  for (const auto& [key, text] : weights.files().front().metadata()) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc{} && end == text.data() + text.size()) own.values[key] = value;
  }
  std::error_code unknown;
  const auto beside = (fs::is_directory(file, unknown) ? file : file.parent_path()) / "config.json";
  ToldSource config{beside.string(), nlohmann::json::object(), false};
  if (std::error_code error; fs::is_regular_file(beside, error)) try {
      auto values = base::parse_json(read_text_file(beside));
      if (values.is_object()) config.values = std::move(values);
    } catch (const Error&) {  // a file that cannot be read says nothing
    }
  return {std::move(own), std::move(config)};
}

// Where the source may have the number; the first place counts.
std::vector<Pointer> places_in(const ToldSource& source, const Untold& untold) {
  if (source.flat) return {Pointer() / std::string(lm::word_of(untold.keys))};
  std::vector<Pointer> places;
  for (const auto key : untold.keys) places.emplace(places.begin(), std::string(key));
  return places;
}

struct Told {
  double value;
  std::string by;  // "model/config.json: rope_theta"
};

std::optional<Told> told(const std::vector<ToldSource>& sources, const Untold& untold) {
  for (const auto& source : sources)
    for (const auto& key : places_in(source, untold))
      if (source.values.contains(key) && source.values.at(key).is_number())
        return Told{source.values.at(key).get<double>(), fmt::format("{} has {}", source.name, key.back())};
  return std::nullopt;
}

std::string quoted(const std::string& name) { return fmt::format("\"{}\"", base::printable(name)); }

// The flags with which the run would be as the directory's config.json: "--layers 2". Empty: there is no such file that can be
// read.
std::optional<std::vector<std::string>> other_sizes(const RunConfig& c) {
  std::error_code error;
  if (!fs::is_regular_file(fs::path(c.run.init_from) / lm::kModelConfigFile, error)) return std::nullopt;
  try {
    const auto own = model_config(c), file = lm::read_model_dir(c.run.init_from);
    std::vector<std::string> flags;
    if (&own.family.get() != &file.family.get()) flags.push_back(fmt::format("--model {}", *file.family.get().name));
    const auto compare = [&](const char* flag, std::int64_t here, std::int64_t there) {
      if (here != there) flags.push_back(fmt::format("--{} {}", flag, there));
    };
    compare("layers", own.layers, file.layers);
    compare("hidden", own.hidden, file.hidden);
    compare("heads", own.heads, file.heads);
    compare("kv-heads", own.kv_heads, file.kv_heads);
    compare("head-dim", own.head_dim(), file.head_dim());
    compare("ffn", own.ffn, file.ffn);
    compare("vocab", own.vocab, file.vocab);
    compare("experts", own.experts.count, file.experts.count);
    if (own.tied != file.tied) flags.emplace_back(file.tied ? "no --untied" : "--untied");
    return flags;
  } catch (const Error&) {  // a file that cannot be read says nothing
    return std::nullopt;
  }
}

// The keys of the directory's config.json that terrace does not read; none if the file cannot be read.
std::vector<std::string> unread_keys(const RunConfig& c) {
  std::vector<std::string> keys;
  std::error_code error;
  if (fs::is_regular_file(fs::path(c.run.init_from) / lm::kModelConfigFile, error)) try {
      static_cast<void>(lm::read_model_dir(c.run.init_from, &keys));
    } catch (const Error&) {
    }
  return keys;
}

std::string mend_of_another_model(const RunConfig& c) {
  const auto flags = other_sizes(c);
  if (!flags)
    return fmt::format(
        "the file is of another model: give --model, --layers, --hidden, --heads, --kv-heads, --ffn, --vocab, "
        "--seq-len, --untied and the like as in the file; parts that {} does not have, such as other biases, are "
        "not supported",
        *c.model.family.get().name);
  if (flags->empty())
    return fmt::format(
        "its {} and its weights are not of one model: bring them back as they were written; parts that {} does not "
        "have, such as other biases, are not supported",
        lm::kModelConfigFile, *c.model.family.get().name);
  return fmt::format("its {} has {}: give that, or leave out what says otherwise", lm::kModelConfigFile,
                     fmt::join(*flags, ", "));
}

void demand_this_model(const RunConfig& c, const Model& model) {
  constexpr std::size_t kShown = 3;
  const auto names = lm::tensors_of_another_model(c.run.init_from, c.model.family.get(), model);
  if (names.empty()) return;
  std::vector<std::string> first;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) first.push_back(quoted(names[i]));
  const auto others = names.size() - first.size();
  throw base::Refused(fmt::format("--init-from {}: the model does not have {} of its tensors: {}{}\n  {}", c.run.init_from,
                                  names.size(), fmt::join(first, ", "), others == 0 ? "" : fmt::format(" and {} more", others),
                                  mend_of_another_model(c)));
}

void demand_told_values(const RunConfig& c) {
  const auto sources = sources_of(c.run.init_from);
  for (const auto& untold : untold_of(c)) {
    const auto file = told(sources, untold);
    if (untold.given || !file || file->value == untold.used) continue;
    const bool must = std::string_view(untold.flag) == "heads";
    throw base::Refused(fmt::format("--init-from {}: {} {}, and this run would use {}\n  give --{} {}{}", c.run.init_from,
                                    file->by, file->value, untold.used, untold.flag, file->value,
                                    must ? "" : fmt::format("; or --{} {}, if that is intended", untold.flag, untold.used)));
  }
}

// Describes the scaling of positions in the file if it differs from the run's.
std::optional<std::string> other_scaling(const RunConfig& c, const lm::RotaryPositions& rotary,
                                         const std::vector<ToldSource>& sources) {
  const auto& own = c.model.rope_scaling;
  for (const auto& source : sources)
    for (const auto key : rotary.scaling_keys) {
      const Pointer pointer{std::string(key)};
      if (!source.values.contains(pointer) || !source.values.at(pointer).is_object()) continue;
      const auto* const at = &source.values.at(pointer);
      for (const auto* const type : {"rope_type", "type"})
        if (const auto kind = at->find(type); kind != at->end() && kind->is_string() && kind->get<std::string>() != "default") {
          const auto longest = source.values.find(std::string(*c.model.family.get().file.positions));
          try {
            const double positions =
                longest != source.values.end() && longest->is_number() ? longest->get<double>() : own.original;
            if (lm::to_text(lm::rope_scaling_of(*at, positions)) == lm::to_text(own)) return std::nullopt;
          } catch (const Error&) {  // a scaling that terrace does not know differs, too
          }
          return fmt::format("{} has {} of type {}", source.name, key.substr(1), quoted(kind->get<std::string>()));
        }
    }
  return std::nullopt;
}

// The weights of the model without its adapters, which come from other files.
WeightSource first_base_weights(const RunConfig& c, const Model& model) {
  if (c.run.init_from.empty()) return random_weights(c.train.seed);
  auto weights = [&] {
    try {
      return lm::weights_from(c.run.init_from, c.model.family.get(), model, io_of_environment());
    } catch (const lm::AnotherModel& error) {
      throw Error(fmt::format("--init-from: {}\n  {}", error.what(), mend_of_another_model(c)), error);
    } catch (const Error& error) {
      const std::string what = error.what();
      constexpr const char* kMend =
          "\n  give a safetensors file of this model, as --save writes one, or a directory with such files";
      throw Error(fmt::format("--init-from: {}{}", what, what.find('\n') == std::string::npos ? kMend : ""), error);
    }
  }();
  demand_told_values(c);
  demand_told_windows(c);
  if (c.found.local_rank == 0) demand_this_model(c, model);
  return weights;
}

}  // namespace

WeightSource first_weights(const RunConfig& c, const Model& model) {
  if (c.train.lora_rank == 0) {
    if (!c.run.init_adapter.empty())
      throw base::Refused(
          "--init-adapter needs adapters\n  give --lora-rank, and --lora-alpha and --lora-targets, as in its directory");
    return first_base_weights(c, model);
  }
  const auto config = model_config(c);
  const auto adapters = lm::first_adapters(config, c.train.seed, c.run.init_adapter);
  return lm::with_adapters(first_base_weights(c, lm::make_model(lm::without_adapters(config))), adapters);
}

std::optional<std::string> warning_of_family(const RunConfig& c) {
  std::error_code error;
  const auto name = *c.model.family.get().name;
  if (!c.run.init_from.empty() || !fs::is_regular_file(fs::path(name) / lm::kModelConfigFile, error)) return std::nullopt;
  return fmt::format(
      "--model {0} is the model family, with new weights, and not the model in the directory {0}: give --model ./{0} "
      "for that",
      name);
}

std::vector<std::string> warnings_of_init_from(const RunConfig& c, const Model& model) {
  std::vector<std::string> warnings;
  if (c.run.init_from.empty()) return warnings;
  if (const auto positions = lm::positions_in(c.run.init_from, c.model.family.get(), model);
      positions > static_cast<std::uint64_t>(c.model.seq_len))
    warnings.push_back(
        fmt::format("--init-from {} has {} positions, and --seq-len is {}: the first {} are used, the others are "
                    "dropped",
                    c.run.init_from, positions, c.model.seq_len, c.model.seq_len));
  const auto sources = sources_of(c.run.init_from);
  std::vector<std::string> names, used, keys;
  for (const auto& untold : untold_of(c)) {
    if (untold.given || !untold.varies || std::string_view(untold.flag) == "heads" || told(sources, untold)) continue;
    names.emplace_back(untold.name);
    used.push_back(fmt::format("--{} {}", untold.flag, untold.used));
    keys.emplace_back(lm::word_of(untold.keys));
  }
  if (!names.empty())
    warnings.push_back(
        fmt::format("--init-from {} does not tell its {}, so this run uses {}; the config.json of its model has "
                    "the right values ({})",
                    c.run.init_from, fmt::join(names, " and "), fmt::join(used, " and "), fmt::join(keys, ", ")));
  if (const auto off = unread_keys(c); !off.empty())
    warnings.push_back(fmt::format("the config.json in {} has what terrace does not know, and is off: {}", c.run.init_from,
                                   fmt::join(off, ", ")));
  if (auto windows = warning_of_told_windows(c)) warnings.push_back(std::move(*windows));
  const auto* const rotary = lm::rotary_positions(c.model.family.get());
  if (const auto scaling = rotary ? other_scaling(c, *rotary, sources) : std::nullopt)
    warnings.push_back(
        fmt::format("--init-from {}: {}, and this run rotates positions with --rope-scaling {}, so the loss begins higher than "
                    "that of the model",
                    c.run.init_from, *scaling, lm::to_text(c.model.rope_scaling)));
  return warnings;
}

std::map<std::string, std::string> metadata_of_saved(const RunConfig& c) {
  std::map<std::string, std::string> texts;
  texts[kWindowKey] = layers::to_string(c.model.window);
  for (const auto& untold : untold_of(c)) texts[std::string(lm::word_of(untold.keys))] = fmt::format("{}", untold.used);
  return texts;
}

}  // namespace terrace::cli
