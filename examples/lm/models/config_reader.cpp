#include <terrace/examples/lm/models/config_reader.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/models/activation_name.h>
#include <terrace/examples/lm/models/harmless_keys.h>
#include <terrace/examples/lm/models/rope_scaling.h>
#include <terrace/parallel/layers/parts/block_pattern.h>

namespace terrace::lm {
namespace {

using nlohmann::json;

constexpr const char* kOriginal = "original_max_position_embeddings";

std::string first_word(std::string_view pointer) { return std::string(pointer.substr(1, pointer.find('/', 1) - 1)); }
std::string last_word(std::string_view pointer) { return std::string(pointer.substr(pointer.rfind('/') + 1)); }

// True if blocks with a window and blocks without one have separate objects in config.json.
bool has_angles_by_type(const RotaryPositions& rotary) { return !(*rotary.window_scaling_key).empty(); }

bool has_window(const WindowKeys& keys, std::int64_t number, std::int64_t block, const layers::RotatedBlocks& rotated) {
  switch (*keys.blocks) {
    case Windowed::all: return true;
    case Windowed::all_but_last: return number == 0 || (block + 1) % number != 0;
    case Windowed::later: return block >= number;
    case Windowed::unrotated: return !rotated.of(block);
  }
  return false;
}

}  // namespace

json language_model_in(json config) {
  const auto type = config.find("model_type"), text = config.find("text_config");
  if (type == config.end() || text == config.end() || !type->is_string() || !text->is_object()) return config;
  for (const auto* const family : families()) {
    const auto& wrapper = family->file.wrapper;
    if ((*wrapper.type).empty() || type->get<std::string>() != *wrapper.type) continue;
    auto own = json::parse(*wrapper.defaults);
    for (const auto* const key : {"torch_dtype", "dtype", "tie_word_embeddings", "transformers_version"})
      if (const auto at = config.find(key); at != config.end()) own[key] = *at;
    own.update(*text);
    own["model_type"] = *family->file.type;
    return own;
  }
  return config;
}

void ConfigReader::refuse(const std::string& what, const std::string& mend) const {
  throw Error(fmt::format("{}: {}\n  {}", name_, what, mend), ErrorKind::refused, {.path = name_});
}

void ConfigReader::complete_for(const Family& family) {
  auto all = json::parse(*family.file.untold);
  all.update(values_);
  values_ = std::move(all);
  const auto* const rotary = rotary_positions(family);
  if (!rotary || rotary->scaling_keys.size() < 2) return;
  const json::json_pointer above{std::string(rotary->scaling_keys[0])}, below{std::string(rotary->scaling_keys[1])};
  const auto is_told = [&](const json::json_pointer& at) {
    return values_.contains(at) && values_.at(at).is_object() && !values_.at(at).empty();
  };
  if (!is_told(above)) return;
  if (has_angles_by_type(*rotary)) {
    auto united = is_told(below) ? values_.at(below) : json{{"rope_type", "default"}};
    united.update(values_.at(above));
    values_[above] = std::move(united);
  }
  if (is_told(below)) values_[below] = json::object();
}

const json* ConfigReader::find(std::string_view key) {
  known_.emplace_back(key);
  const auto at = values_.find(std::string(key));
  return key.empty() || at == values_.end() || at->is_null() ? nullptr : &*at;
}

const json* ConfigReader::find_at(std::string_view pointer) {
  known_.push_back(first_word(pointer));
  const json::json_pointer at{std::string(pointer)};
  return values_.contains(at) && !values_.at(at).is_null() ? &values_.at(at) : nullptr;
}

std::optional<std::int64_t> ConfigReader::integer(std::string_view key) {
  const auto* const value = find(key);
  if (!value) return std::nullopt;
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (!value->is_number_integer() || *value < 0 || *value > kMost)
    refuse(fmt::format("{} is {}, which is no size", key, shown(*value)), "mend the file");
  return value->get<std::int64_t>();
}

std::int64_t ConfigReader::size(std::string_view key) {
  const auto value = integer(key);
  if (!value) refuse(fmt::format("it does not tell {}", key), "mend the file, or give --model a family and the sizes");
  return *value;
}

std::int64_t ConfigReader::size(const Words& names) {
  std::optional<std::int64_t> found;
  for (const auto name : names) {
    const auto value = integer(name);
    if (value && found && *value != *found)
      refuse(fmt::format("{} is {}, and {} is {}", names[0], *found, name, *value), "mend the file");
    if (value) found = value;
  }
  return found ? *found : size(names[0]);
}

bool ConfigReader::truth(std::string_view key, bool usual) {
  const auto* const value = find(key);
  if (value && !value->is_boolean())
    refuse(fmt::format("{} is {}, neither true nor false", key, shown(*value)), "mend the file");
  return value ? value->get<bool>() : usual;
}

std::optional<bool> ConfigReader::truth(std::string_view key) {
  if (key.empty()) return std::nullopt;
  return truth(key, false);
}

DType ConfigReader::dtype() {
  const auto* told = find("dtype");
  if (!told) told = find("torch_dtype");
  const auto text = told && told->is_string() ? told->get<std::string>() : std::string();
  if (text == "bfloat16" || text == "float16") return DType::bf16;
  return text == "float64" ? DType::fp64 : DType::fp32;
}

std::optional<double> ConfigReader::number(const Words& keys) {
  std::optional<double> found;
  for (const auto key : keys) {
    const auto* const value = find_at(key);
    if (!value) continue;
    if (!value->is_number() || !std::isfinite(value->get<double>()))
      refuse(fmt::format("{} is {}, which is no number", key.substr(1), shown(*value)), "mend the file");
    found = value->get<double>();
  }
  return found;
}

std::optional<Activation> ConfigReader::activation(const Family& family) {
  const auto* const value = find(*family.file.activation);
  if (!value) return std::nullopt;
  const auto kind =
      value->is_string() ? activation_named(value->get<std::string>(), inputs_of(*family.activation)) : std::nullopt;
  if (!kind)
    refuse(fmt::format("{} is {}: terrace has silu, gelu, and gelu_pytorch_tanh or gelu_new", *family.file.activation,
                       shown(*value)),
           "train another model");
  return kind;
}

double ConfigReader::cap(const CapNumber& cap) {
  const std::string_view key = *cap.key;
  if (key.empty() || !values_.contains(key)) return *cap.usual;
  const auto* const value = find(key);
  if (!value) return 0;
  if (!value->is_number() || !(value->get<double>() > 0))
    refuse(fmt::format("{} is {}, which is no cap", key, shown(*value)), "mend the file");
  return value->get<double>();
}

double ConfigReader::query_scalar(const Scales& scales) {
  const std::string_view key = *scales.query_scalar;
  if (key.empty()) return 0;
  const auto* const value = find(key);
  if (!value) return *scales.untold_query_scalar;
  if (!value->is_number() || !(value->get<double>() > 0))
    refuse(fmt::format("{} is {}, by whose root nothing can be divided", key, shown(*value)), "mend the file");
  return value->get<double>();
}

std::string ConfigReader::shown(const json& value) {
  auto text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 100) text = text.substr(0, 100) + "…";
  return base::printable(text);
}

void ConfigReader::demand_fixed(const FixedValues& fixed) {
  for (const auto& [key, values] : fixed) {
    const auto* const found = find(key);
    const auto is = [&](std::string_view text) { return !text.empty() && *found == json::parse(text); };
    if (!found || std::ranges::any_of(values, is)) continue;
    refuse(fmt::format("{} is {}: terrace has this model with {} only", key, shown(*found), values.front()),
           "train another model");
  }
}

Rotary ConfigReader::scaling_at(std::string_view pointer, const RotaryPositions& rotary, std::int64_t longest) {
  const auto* const scaling = find_at(pointer);
  if (!scaling) return {};
  auto object = *scaling;
  const auto* const original = find(kOriginal);
  const std::string only(*rotary.only_scaling);
  if (object.is_object()) {
    if (has_angles_by_type(rotary))
      object.erase("truncate");  // the library looks for it outside these objects, where no file has it
    else if (original)
      object[kOriginal] = *original;
    // Phi-3's first files used these names for longrope.
    for (const auto* const type : {"rope_type", "type"})
      if (const auto at = object.find(type); !only.empty() && at != object.end() && (*at == "su" || *at == "yarn")) *at = only;
  }
  try {
    auto found = rope_scaling_of(object, static_cast<double>(longest));
    if (!only.empty() && found.scaling != RotaryScaling::none && kind_of(found) != only)
      throw base::Refused(fmt::format("its type is {}, and the library has this model with {} only", kind_of(found), only));
    return found;
  } catch (const Error& error) {
    refuse(fmt::format("{}: {}", pointer.substr(1), error.what()), "terrace has no other changes of rotary positions");
  }
}

Rotary ConfigReader::scaling_of(const RotaryPositions& rotary, std::int64_t longest) {
  Rotary found;
  for (const auto key : rotary.scaling_keys)
    if (const auto one = scaling_at(key, rotary, longest); one.scaling != RotaryScaling::none) found = one;
  if (!has_angles_by_type(rotary)) return found;
  const std::string_view of_windows = *rotary.window_scaling_key;
  if (scaling_at(of_windows, rotary, longest).scaling != RotaryScaling::none)
    refuse(fmt::format("{} changes the angles of blocks with a window", of_windows.substr(1)), "train another model");
  // The parent object has one object for each type of layer; any other entry is refused.
  std::vector<std::string> types{last_word(of_windows)};
  for (const auto key : rotary.scaling_keys) types.push_back(last_word(key));
  if (const auto* const both = find(first_word(of_windows)))
    for (const auto& [type, value] : both->items())
      if (std::ranges::count(types, type) == 0)
        refuse(
            fmt::format("{} has {}, which is no type of layers of this model", first_word(of_windows), base::printable(type)),
            "mend the file");
  return found;
}

double ConfigReader::fraction(const RotaryPositions& rotary) {
  const auto told = number(rotary.fraction_keys);
  const Words of_all{"/partial_rotary_factor", "/rope_parameters/partial_rotary_factor", "/rope_scaling/partial_rotary_factor"};
  if (const auto other = number(of_all); rotary.fraction_keys.size() == 0 && other.value_or(1) != 1)
    refuse(fmt::format("partial_rotary_factor is {}: terrace has this model with 1 only", *other), "train another model");
  return told.value_or(1);
}

// The list has 1 for each block that rotates.
std::optional<layers::RotatedBlocks> ConfigReader::rotated_blocks(const RotaryPositions& rotary, std::int64_t blocks) {
  const std::string_view key = *rotary.blocks_key;
  const auto every = integer(*rotary.every_key);
  const auto* const list = find(key);
  if (blocks > layers::kMostLayers) return std::nullopt;  // complete() refuses them
  if (!list) return every ? std::optional(all_but_every(*every, blocks)) : std::nullopt;
  std::vector<bool> rotated;
  const auto is_flag = [](const json& flag) { return flag == 0 || flag == 1; };
  if (!list->is_array() || std::ssize(*list) != blocks || !std::ranges::all_of(*list, is_flag))
    refuse(fmt::format("{} is {}, which is no list of 0 and 1 for each of {} layers", key, shown(*list), blocks),
           "mend the file");
  for (const auto& flag : *list) rotated.push_back(flag == 1);
  return layers::RotatedBlocks(layers::shortest_pattern(std::move(rotated)));
}

// In newer files, layer_types names the type of every layer, and only sliding_attention layers have the window.
layers::Windows ConfigReader::windows(const WindowKeys& keys, std::int64_t blocks, const layers::RotatedBlocks& rotated) {
  const bool used = (*keys.used).empty() || truth(*keys.used, false);
  const auto size = integer(*keys.size), number = integer(*keys.number);
  const auto* const types = find("layer_types");
  if (blocks > layers::kMostLayers) return {};  // complete() refuses them
  if (used && size == 0)
    refuse(fmt::format("{} is 0, with which a position does not even see itself", *keys.size),
           "mend the file: null is no window");
  const auto window = used ? size.value_or(0) : 0;
  std::vector<std::int64_t> of_blocks;
  for (std::int64_t b = 0; b < blocks; ++b)
    of_blocks.push_back(has_window(keys, number.value_or(*keys.usual_number), b, rotated) ? window : 0);
  if (types) {
    const auto is_known = [&](const json& type) {
      return type == "full_attention" || (type == "sliding_attention" && window != 0);
    };
    if (!types->is_array() || std::ssize(*types) != blocks || !std::ranges::all_of(*types, is_known))
      refuse(fmt::format("layer_types is {}, for {} layers with {}", shown(*types), blocks,
                         window == 0 ? "no window" : fmt::format("a window of {}", window)),
             "mend the file: it has full_attention for each layer, or sliding_attention where the model has a window");
    auto told = of_blocks;
    for (std::int64_t b = 0; b < blocks; ++b)
      told[static_cast<std::size_t>(b)] = types->at(static_cast<std::size_t>(b)) == "full_attention" ? 0 : window;
    if (!*keys.types && told != of_blocks)
      refuse(fmt::format("layer_types is {}: the library does not read it in this model, and computes with {} in all layers",
                         shown(*types), window == 0 ? "no window" : fmt::format("a window of {}", window)),
             "mend the file: take layer_types out of it, if that is the model");
    of_blocks = std::move(told);
  }
  return layers::Windows(layers::shortest_pattern(std::move(of_blocks)));
}

std::vector<std::string> ConfigReader::demand_nothing_else(const Family& family) const {
  std::vector<std::string> unknown, off;
  for (const auto& [key, value] : values_.items()) {
    if (std::ranges::count(known_, key) != 0) continue;
    const auto kind = further_key(key, values_, family);
    if (kind == FurtherKey::harmless) continue;
    (kind == FurtherKey::off ? off : unknown).push_back(fmt::format("{} ({})", base::printable(key), shown(value)));
  }
  if (unknown.empty()) return off;
  refuse(fmt::format("it has what terrace does not know: {}", fmt::join(unknown, ", ")),
         "if that changes nothing of what the model computes, take it out of a copy of the file");
}

}  // namespace terrace::lm
