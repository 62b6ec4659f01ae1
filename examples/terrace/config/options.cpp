#include <terrace/examples/terrace/config/options.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <terrace/core/base/nesting.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/lm/data/mixture.h>
#include <terrace/examples/lm/models/activation_name.h>
#include <terrace/examples/lm/models/model_dir.h>
#include <terrace/examples/lm/models/rope_scaling.h>
#include <terrace/examples/terrace/config/same_settings.h>
#include <terrace/examples/terrace/config/usual_settings.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/data/run_data.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
constexpr double kBaseWithoutRotation = 10000;  // recorded by all runs of families without rotary positions
constexpr std::size_t kLongMessage = 200;       // characters of a TOML error, which quotes the text

// A value before it is parsed: flags and --set bring text, TOML brings types.
using Raw = ConfigField::Value;
using Kind = ConfigField::Kind;

std::string show(const Raw& raw) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) return fmt::format("\"{}\"", base::printable(v));
        if constexpr (std::is_same_v<T, std::vector<std::string>>) return fmt::format("[{} values]", v.size());
        if constexpr (!std::is_same_v<T, std::string> && !std::is_same_v<T, std::vector<std::string>>)
          return fmt::format("{}", v);
      },
      raw);
}

// Where a value came from, and whether it has a type (TOML) or is text (command line).
struct Source {
  std::string where;  // "--steps", "--set train.steps", "run.toml, line 3: steps"
  bool typed = false;
};

[[noreturn]] void refuse_setting(const Option& o, const Source& source, const Raw& raw, const std::string& detail = "") {
  throw base::Refused(fmt::format("{}: {} is not accepted{}\n  {} takes {}", source.where, show(raw),
                                  detail.empty() ? "" : ": " + detail, o.key, accepted(o)));
}

std::string listed(const std::vector<std::string_view>& words, std::string_view between) {
  std::string out;
  for (const auto word : words) {
    if (!out.empty()) out += between;
    out += word;
  }
  return out;
}

std::string shown(double v) {
  if (v == std::floor(v) && std::abs(v) < 1e16) return fmt::format("{:.0f}", v);
  return fmt::format("{}", v);
}

template <class T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const auto* const begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

void check_bounds(const Option& o, const Source& source, const Raw& raw, double value) {
  const bool low = o.open_low ? value > o.low : value >= o.low;
  const bool high = o.open_high ? value < o.high : value <= o.high;
  if (!std::isfinite(value) || (o.low != o.high && !low)) refuse_setting(o, source, raw);
  if (o.low != o.high && !high) refuse_setting(o, source, raw, "it is too large");
}

std::int64_t to_integer(const Option& o, const Source& source, const Raw& raw) {
  std::optional<std::int64_t> value;
  if (const auto* i = std::get_if<std::int64_t>(&raw)) value = *i;
  if (const auto* s = std::get_if<std::string>(&raw); s && !source.typed) value = parse_number<std::int64_t>(*s);
  if (!value) {
    const auto* const text = std::get_if<std::string>(&raw);
    if (text && source.typed) refuse_setting(o, source, raw, "it is a text: leave out the quotes");
    const bool digits = text && !text->empty() && text->find_first_not_of("0123456789") == std::string::npos;
    refuse_setting(o, source, raw, digits ? "it is too large" : "");
  }
  check_bounds(o, source, raw, static_cast<double>(*value));
  return *value;
}

double to_real(const Option& o, const Source& source, const Raw& raw) {
  std::optional<double> value;
  if (const auto* i = std::get_if<std::int64_t>(&raw)) value = static_cast<double>(*i);
  if (const auto* d = std::get_if<double>(&raw)) value = *d;
  if (const auto* s = std::get_if<std::string>(&raw); s && !source.typed) value = parse_number<double>(*s);
  if (!value) refuse_setting(o, source, raw);
  check_bounds(o, source, raw, *value);
  return *value;
}

bool to_bool(const Option& o, const Source& source, const Raw& raw) {
  if (const auto* b = std::get_if<bool>(&raw)) return *b;
  if (const auto* s = std::get_if<std::string>(&raw); s && !source.typed) {
    if (*s == "true") return true;
    if (*s == "false") return false;
  }
  refuse_setting(o, source, raw);
}

// A path, or the name of a directory that exists and is not that of a family.
bool is_model_dir(const Option& o, const std::string& text) {
  if (std::ranges::find(o.choices, text) != o.choices.end()) return false;
  std::error_code error;
  return text.find('/') != std::string::npos || fs::is_directory(text, error);
}

void check_choice(const Option& o, const Source& source, const Raw& raw, const std::string& text) {
  if (std::ranges::find(o.choices, text) != o.choices.end()) return;
  const auto near = nearest(text, o.choices);
  refuse_setting(o, source, raw, near.empty() ? "" : fmt::format("did you mean {}?", near));
}

void check_text(const Option& o, const Source& source, const Raw& raw, const std::string& text) {
  // The text is written into config.toml and JSON, and must be readable there.
  if (!is_utf8(text)) refuse_setting(o, source, raw, "it is not UTF-8; rename the file, or link to it by another name");
  switch (o.text) {
    case Option::Text::any: return;
    case Option::Text::required:
      if (text.empty()) refuse_setting(o, source, raw);
      return;
    case Option::Text::size: {
      if (text == "auto") return;
      std::uint64_t bytes = 0;
      try {
        bytes = parse_bytes(text);
      } catch (const Error&) {
        refuse_setting(o, source, raw);
      }
      if (bytes == 0) refuse_setting(o, source, raw, "a size must be greater than zero");
      return;
    }
    case Option::Text::layers:
      if (const auto n = parse_number<std::int64_t>(text); n && *n >= 0 && *n <= 1'000'000) return;
      return check_choice(o, source, raw, text);
    case Option::Text::share:
      if (text == "auto") return;
      try {
        static_cast<void>(parse_update_place(text));
      } catch (const Error&) {
        check_choice(o, source, raw, text);
      }
      return;
    case Option::Text::windows: {
      try {
        static_cast<void>(layers::Windows::parse(text));
      } catch (const Error&) {
        refuse_setting(o, source, raw);
      }
      return;
    }
    case Option::Text::choice: return check_choice(o, source, raw, text);
    case Option::Text::model:
      if (!is_model_dir(o, text)) check_choice(o, source, raw, text);
      return;
    case Option::Text::depth: {
      const auto depth = parse_number<std::int64_t>(text);
      if (text != "auto" && (!depth || *depth < 0 || *depth > 1'000'000)) refuse_setting(o, source, raw);
      return;
    }
    case Option::Text::device: {
      const bool digits = text.size() > 5 && text.size() < 9 &&
                          std::all_of(text.begin() + 5, text.end(), [](unsigned char c) { return c >= '0' && c <= '9'; });
      if (text != "auto" && text != "cpu" && !(text.starts_with("cuda:") && digits)) refuse_setting(o, source, raw);
      return;
    }
  }
}

std::string to_text(const Option& o, const Source& source, const Raw& raw) {
  std::string text;
  if (const auto* s = std::get_if<std::string>(&raw)) {
    text = *s;
  } else if (const auto* i = std::get_if<std::int64_t>(&raw);
             i && (o.text == Option::Text::size || o.text == Option::Text::depth || o.text == Option::Text::layers ||
                   o.text == Option::Text::windows)) {
    text = std::to_string(*i);  // bytes, a depth, a count
  } else if (const auto* d = std::get_if<double>(&raw); d && o.text == Option::Text::share) {
    text = fmt::format("{}", *d);
  } else {
    refuse_setting(o, source, raw);
  }
  check_text(o, source, raw, text);
  return text;
}

std::vector<std::string> to_texts(const Option& o, const Source& source, const Raw& raw) {
  std::vector<std::string> texts;
  if (const auto* s = std::get_if<std::string>(&raw))
    texts = {*s};
  else if (const auto* many = std::get_if<std::vector<std::string>>(&raw))
    texts = *many;
  else
    refuse_setting(o, source, raw);
  for (const auto& text : texts) check_text(o, source, text, text);
  return texts;
}

ConfigField::Value checked(const Option& o, const Source& source, const Raw& raw) {
  switch (o.field.kind()) {
    case Kind::integer: return to_integer(o, source, raw);
    case Kind::real: return to_real(o, source, raw);
    case Kind::flag: return to_bool(o, source, raw);
    case Kind::paths: return to_texts(o, source, raw);
    case Kind::text:
    case Kind::path: break;
  }
  return to_text(o, source, raw);
}

void assign(RunConfig& config, const Option& o, const Source& source, const Raw& raw) {
  o.field.write(config, checked(o, source, raw));
  config.found.given.emplace(o.key);
}

std::vector<std::string_view> keys() {
  std::vector<std::string_view> out;
  for (const auto& o : options()) out.push_back(o.key);
  return out;
}

// Finds the option of a key, with or without its section.
const Option& require_option(std::string_view section, std::string_view key, const std::string& where) {
  if (!section.empty() && std::ranges::find(sections(), section) == sections().end()) {
    throw base::Refused(fmt::format("{}: there is no section [{}]{}\n  the sections are {}", where, base::printable(section),
                                    suggestion(section, sections()), fmt::join(sections(), ", ")));
  }
  const auto* const option = find_option(key);
  if (!option) {
    throw base::Refused(fmt::format("{}: unknown key \"{}\"{}\n  terrace config prints every key", where, base::printable(key),
                                    suggestion(key, keys())));
  }
  if (!section.empty() && option->section != section) {
    throw base::Refused(
        fmt::format("{}: {} does not belong to [{}]\n  write {}.{}", where, key, section, option->section, key));
  }
  return *option;
}

Raw raw_of(const toml::node& node, const Option& o, const Source& source) {
  if (const auto v = node.value_exact<std::string>()) return *v;
  if (const auto v = node.value_exact<std::int64_t>()) return *v;
  if (const auto v = node.value_exact<double>()) return *v;
  if (const auto v = node.value_exact<bool>()) return *v;
  if (const auto* const array = node.as_array()) {
    std::vector<std::string> texts;
    for (const auto& element : *array) {
      const auto text = element.value_exact<std::string>();
      if (!text) refuse_setting(o, source, std::string("an array whose elements are not all strings"));
      texts.push_back(*text);
    }
    return texts;
  }
  refuse_setting(o, source, std::string("a date, time or table"));
}

std::string toml_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string toml_value(const Option& o, const RunConfig& config) {
  return std::visit(
      [](const auto& value) -> std::string {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, double>) {
          auto text = fmt::format("{}", value);  // the shortest text that reads back as the same number
          return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
        } else if constexpr (std::is_same_v<T, std::string>) {
          return toml_text(value);
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          std::string out = "[";
          for (const auto& text : value) out += (out.size() > 1 ? ", " : "") + toml_text(text);
          return out + "]";
        } else {
          return fmt::format("{}", value);
        }
      },
      o.field.read(config));
}

nlohmann::json json_value(const Option& o, const RunConfig& config) {
  return std::visit([](const auto& value) -> nlohmann::json { return value; }, o.field.read(config));
}

std::string type_name(const Option& o) {
  if (!o.value.empty()) return std::string(o.value);
  if (o.field.kind() == Kind::real) return "NUMBER";
  if (o.field.kind() == Kind::integer) return "INT";
  if (o.field.kind() == Kind::path || o.many()) return "PATH";
  if (o.text == Option::Text::size) return "SIZE";
  if (o.text == Option::Text::choice) return listed(o.choices, "|");
  if (o.text == Option::Text::model) return listed(o.choices, "|") + "|DIR";
  if (o.text == Option::Text::layers) return listed(o.choices, "|") + "|N";
  if (o.text == Option::Text::share) return listed(o.choices, "|") + "|SHARE|SHARE,SHARE";
  return "TEXT";
}

std::string default_text(const Option& o) {
  const RunConfig defaults;
  const auto value = json_value(o, defaults);
  if (value.is_string()) return value.get<std::string>();
  return value.is_array() ? "" : value.dump();
}

}  // namespace

std::string accepted(const Option& o) {
  if (o.flag()) return "true or false";
  if (o.many()) return "one or more paths";
  const bool integer = o.field.kind() == Kind::integer;
  if (integer || o.field.kind() == Kind::real) {
    std::string what = integer ? "an integer" : "a number";
    if (o.low == o.high) return what;
    const auto low = fmt::format("{} {}", o.open_low ? "greater than" : "of at least", shown(o.low));
    if (o.high >= 1e15) return fmt::format("{} {}", what, low);
    return fmt::format("{} {} and {} {}", what, low, o.open_high ? "less than" : "at most", shown(o.high));
  }
  switch (o.text) {
    case Option::Text::choice: return "one of " + listed(o.choices, ", ");
    case Option::Text::model: return "one of " + listed(o.choices, ", ") + ", or the directory of a model";
    case Option::Text::size: return "a size greater than zero, such as 512MiB, 1.5GiB or 16GB (decimal), or auto or unlimited";
    case Option::Text::depth: return "auto or an integer of at least 0";
    case Option::Text::layers: return fmt::format("{} or an integer of at least 0", listed(o.choices, ", "));
    case Option::Text::share: return fmt::format("{}, a share from 0 to 1, or two of them", listed(o.choices, ", "));
    case Option::Text::windows: return "an integer of at least 0, or a list of them such as 512,512,0";
    case Option::Text::device: return "auto, cpu or cuda:N";
    case Option::Text::required: return "a text that is not empty";
    case Option::Text::any: break;
  }
  return "a text";
}

void add_options(CLI::App& app, Assignments& out, std::span<const std::string_view> only) {
  for (const auto& option : options()) {
    const auto* const o = &option;
    // "model" is the section, and "--model" the option of that name.
    const auto wanted = [&](std::string_view name) {
      return name == o->section || name == o->key || name == fmt::format("--{}", o->key);
    };
    if (!only.empty() && std::ranges::none_of(only, wanted)) continue;
    const auto flag = fmt::format("--{}", o->key);
    const std::string help(o->help);
    CLI::Option* added = nullptr;
    if (o->flag()) {
      added = app.add_flag_function(
          flag,
          [o, &out](std::int64_t n) {
            out.push_back({o, {n > 0 ? "true" : "false"}});
          },
          help);
    } else if (o->many()) {
      added = app.add_option_function<std::vector<std::string>>(
          flag,
          [o, &out](const std::vector<std::string>& values) {
            out.push_back({o, values});
          },
          help);
      added->expected(1, CLI::detail::expected_max_vector_size)->type_name(type_name(*o));
    } else {
      added = app.add_option_function<std::string>(
          flag,
          [o, &out](const std::string& value) {
            out.push_back({o, {value}});
          },
          help);
      added->type_name(type_name(*o));
      if (!o->alone.empty()) added->expected(0, 1)->default_str(std::string(o->alone));
    }
    if (!o->flag() && o->alone.empty()) added->default_str(default_text(*o));
    added->group(std::string(o->section));
  }
}

void apply_toml(RunConfig& config, std::string_view text, const std::string& name) {
  const auto refuse_text = [&](const std::string& where, std::string_view why) {
    throw base::Refused(fmt::format("{}{}: {}\n  terrace config prints a correct file", name, where, why));
  };
  toml::table root;
  try {
    base::demand_shallow_toml(text);
    root = toml::parse(text, name);
  } catch (const toml::parse_error& e) {
    refuse_text(fmt::format(", line {}", e.source().begin.line), base::printable(e.description(), kLongMessage));
  } catch (const Error& error) {
    refuse_text("", error.what());
  }
  std::set<const Option*> given;
  const auto take = [&](std::string_view section, const toml::key& key, const toml::node& value) {
    const auto where = fmt::format("{}, line {}", name, key.source().begin.line);
    const auto& o = require_option(section, key.str(), where);
    if (!given.insert(&o).second) throw base::Refused(fmt::format("{}: {} is given twice", where, o.key));
    const Source source{fmt::format("{}: {}", where, o.key), true};
    assign(config, o, source, raw_of(value, o, source));
  };
  for (const auto& [key, value] : root) {
    const auto* const table = value.as_table();
    if (!table) {
      take("", key, value);
      continue;
    }
    if (std::ranges::find(sections(), key.str()) == sections().end()) {
      require_option(key.str(), "", fmt::format("{}, line {}", name, key.source().begin.line));
    }
    for (const auto& [inner, inner_value] : *table) take(key.str(), inner, inner_value);
  }
}

std::string read_config_file(const fs::path& file) try { return read_text_file(file); } catch (const Error& error) {
  throw base::Refused(fmt::format("--config {}: cannot be read: {}\n  give --config a TOML file; terrace config prints one",
                                  file.string(), error.what()));
}

void apply_file(RunConfig& config, const fs::path& file) { apply_toml(config, read_config_file(file), file.string()); }

void apply_set(RunConfig& config, std::string_view assignment) {
  const auto equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw base::Refused(fmt::format("--set {}: a key, = and a value are required\n  for example --set train.steps=100",
                                    base::printable(assignment)));
  }
  const auto trim = [](std::string_view text) {
    while (text.starts_with(' ')) text.remove_prefix(1);
    while (text.ends_with(' ')) text.remove_suffix(1);
    return text;
  };
  const auto name = trim(assignment.substr(0, equals));
  auto value = trim(assignment.substr(equals + 1));
  const auto point = name.find('.');
  const auto section = point == std::string_view::npos ? std::string_view{} : name.substr(0, point);
  const auto key = point == std::string_view::npos ? name : name.substr(point + 1);
  const Source source{fmt::format("--set {}", base::printable(name)), false};
  const auto& o = require_option(section, key, source.where);
  // Arrays and quoted strings are parsed as TOML; other values need no quotes.
  if (value.starts_with('[') || value.starts_with('"')) {
    try {
      base::demand_shallow_toml(value);
      const auto parsed = toml::parse(fmt::format("value = {}", value));
      assign(config, o, source, raw_of(*parsed.get("value"), o, source));
    } catch (const toml::parse_error& e) {
      refuse_setting(o, source, std::string(value), base::printable(e.description(), kLongMessage));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::refused) throw;
      refuse_setting(o, source, std::string(value), error.what());
    }
    return;
  }
  assign(config, o, source, std::string(value));
}

bool apply_model_dir(RunConfig& c) {
  if (c.run.model_dir.empty()) return false;
  const auto directory = std::exchange(c.run.model_dir, "");
  const auto own = c.model;
  auto& model = c.model = lm::read_model_dir(directory);
  c.run.init_from = directory;
  // What no directory states.
  model.vocab_tiles = own.vocab_tiles;
  model.mlp_tiles = own.mlp_tiles;
  model.mlp_row_tiles = own.mlp_row_tiles;
  model.attention_tiles = own.attention_tiles;
  model.head_rows = own.head_rows;
  model.skips = own.skips;
  model.products = own.products;
  if (!model.attention_cap) model.attention_cap = own.attention_cap;
  if (!model.logit_cap) model.logit_cap = own.logit_cap;
  if (!model.rotated_blocks) model.rotated_blocks = own.rotated_blocks;
  const auto stated = std::exchange(model.experts, own.experts);
  if (stated.count != 0) {
    model.experts.count = stated.count;
    model.experts.chosen = stated.chosen;
    model.experts.renormalise = stated.renormalise;
  }
  if (model.activation == *model.family.get().activation) model.activation.reset();
  for (auto* const bias : {&model.attention_bias, &model.mlp_bias})
    if (!bias->value_or(false)) bias->reset();
  if (c.is_given("dtype"))
    model.dtype = own.dtype;
  else
    c.found.chosen.push_back(fmt::format("--dtype {} (its {})", word_of(model.dtype), lm::kModelConfigFile));
  // Most users want to train with shorter sequences than a published model allows.
  const auto longest =
      std::exchange(model.seq_len, std::min(c.is_given("seq-len") ? own.seq_len : kLongestUsual, model.seq_len));
  if (!c.is_given("seq-len"))
    c.found.chosen.push_back(fmt::format("--seq-len {} ({})", model.seq_len,
                                         model.seq_len == longest ? "as long as the model's" : "usual for a published model"));
  for (const auto* const key : {"dtype", "seq-len", "vocab"}) c.found.given.emplace(key);  // by the model's directory
  return true;
}

void keep_usual(RunConfig& c, const RunConfig& of_directory) {
  const RunConfig usual;
  const auto keep = [&](auto field) {
    if (c.model.*field == usual.model.*field) c.model.*field = of_directory.model.*field;
  };
  using Model = lm::ModelConfig;
  for (const auto number : {&Model::rope_theta, &Model::window_rope_theta, &Model::norm_eps}) keep(number);
  for (const auto cap : {&Model::attention_cap, &Model::logit_cap}) keep(cap);
  keep(&Model::activation);
  keep(&Model::rotated_blocks);
  if (c.run.init_from.empty()) c.run.init_from = of_directory.run.init_from;
}

void apply_flags(RunConfig& config, const Assignments& flags) {
  for (const auto& [option, values] : flags) {
    const Source source{fmt::format("--{}", option->key), false};
    assign(config, *option, source, option->many() ? Raw(values) : Raw(values.at(0)));
  }
}

RunConfig with_absolute_paths(RunConfig c) {
  const auto one = [](auto& path) {
    if (!path.empty()) path = fs::absolute(path).lexically_normal().string();
  };
  // --schedule and --resume may be names instead of paths.
  for (auto* const text :
       {&c.data.tokenizer, &c.run.init_from, &c.run.save, &c.run.init_adapter, &c.run.resume.run, &c.plan.machine_profile})
    one(*text);
  for (auto* const path : {&c.run.out_dir, &c.run.prometheus}) one(*path);
  if (std::error_code error; fs::is_regular_file(c.parallel.schedule, error)) one(c.parallel.schedule);
  for (auto& path : c.memory.nvme_path) one(path);
  for (auto* const words : {&c.data.files, &c.data.eval_files})
    for (auto& word : *words)
      if (!lm::is_number(word.string())) one(word);  // a number is a weight
  return c;
}

std::string to_toml(const RunConfig& config) {
  std::string out;
  for (const auto section : sections()) {
    out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    for (const auto& o : options()) {
      if (o.section != section) continue;
      const auto entry = fmt::format("{} = {}", o.key, toml_value(o, config));
      const auto comment =
          o.text == Option::Text::choice ? fmt::format("{} ({})", o.help, listed(o.choices, ", ")) : std::string(o.help);
      out += fmt::format("{:<34} # {}\n", entry, comment);
    }
  }
  return out;
}

nlohmann::json to_json(const RunConfig& config) {
  nlohmann::json out;
  for (const auto& o : options()) out[std::string(o.section)][std::string(o.key)] = json_value(o, config);
  return out;
}

nlohmann::json settings_over_resumes(const RunConfig& config) {
  nlohmann::json out;
  for (const auto& o : options()) {
    if (o.same == Option::Same::over_resumes && o.key != "data") out[std::string(o.key)] = json_value(o, config);
  }
  // The usual values count as if they had been given, so that a run from before these flags can be resumed with them.
  const auto& family = config.model.family.get();
  const auto* const base = lm::rotary_base(family);
  if (config.model.rope_theta == 0) out["rope-base"] = base ? *base->usual : kBaseWithoutRotation;
  if (config.model.norm_eps == 0) out["norm-eps"] = *family.norm_eps.usual;
  return out;
}

nlohmann::json fingerprint(const RunConfig& config) {
  auto out = settings_over_resumes(config);
  // Data files count by name and size, not by path, because a corpus may be moved with its run.
  auto files = nlohmann::json::array();
  const auto sources = data_sources(config);
  for (const auto& source : sources)
    for (const auto& file : source.files) {
      std::error_code error;
      const auto bytes = fs::file_size(file, error);
      if (error) throw base::Refused(fmt::format("--data {}: {}", file.string(), error.message()));
      files.push_back({{"name", file.filename().string()}, {"bytes", bytes}});
      if (sources.size() == 1) continue;
      files.back()["source"] = source.name;
      files.back()["weight"] = source.weight;
    }
  out["data"] = std::move(files);
  if (config.data.format == DataFormat::conversations) {
    out["tokenizer"] = describe_content(tokenizer_of(config));
    if (auto text = describe_template(config); !text.empty()) out["chat template"] = std::move(text);
  }
  return out;
}

nlohmann::json as_written_now(std::string_view key, const nlohmann::json& value) {
  const auto* const option = find_option(key);
  const bool has_text = option && option->field.kind() == Kind::text && option->text != Option::Text::choice;
  if (!has_text || !value.is_string()) return value;
  try {
    RunConfig read;
    option->field.write(read, value.get<std::string>());
    return json_value(*option, read);
  } catch (const Error&) {  // of a file that was edited by hand
    return value;
  }
}

std::string describe_difference(const nlohmann::json& then, const nlohmann::json& now, std::string_view where_then,
                                std::string_view where_now) {
  const auto text = [](const nlohmann::json& object, const std::string& key) -> std::string {
    if (!object.contains(key)) return "nothing";
    const auto& value = object.at(key);
    if (value == "") return "nothing";
    if (key != "data" || !value.is_array()) return base::printable(value.is_string() ? value.get<std::string>() : value.dump());
    std::string out;
    for (const auto& file : value) {
      if (!out.empty()) out += ", ";
      out +=
          file.is_string()
              ? base::printable(file.get<std::string>())
              : fmt::format("{} ({} bytes{})", base::printable(file.value("name", "?")), file.value("bytes", std::uint64_t{0}),
                            file.contains("weight") ? fmt::format(", weight {}", file.value("weight", std::uint64_t{0})) : "");
    }
    return out.empty() ? "nothing" : out;
  };
  std::set<std::string> all;
  for (const auto* const object : {&then, &now})
    for (const auto& item : object->items()) all.insert(item.key());
  std::string out;
  for (const auto& key : all) {
    if (then.contains(key) && now.contains(key) && then.at(key) == now.at(key)) continue;
    out += fmt::format("{}  {}: {} {}, {} {}", out.empty() ? "" : "\n", base::printable(key), text(then, key), where_then,
                       text(now, key), where_now);
  }
  return out;
}

std::uint64_t resolve_bytes(const std::string& text, std::uint64_t automatic) {
  return text == "auto" ? automatic : parse_bytes(text);
}

}  // namespace terrace::cli
