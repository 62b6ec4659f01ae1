#include <terrace/examples/lm/models/rope_scaling.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>

namespace terrace::lm {
namespace {

using nlohmann::json;

[[noreturn]] void refuse_scaling(const std::string& what) { throw base::Refused("rope scaling: " + what); }

// A number of a scaling kind: its word in a setting, its key in config.json, and whether it is required.
struct Number {
  const char *word, *key;
  double Rotary::*field;
  bool must;
};
// The same for a list of numbers, one for each rotated pair.
struct List {
  const char *word, *key;
  std::vector<double> Rotary::*field;
};
struct Kind {
  const char* name;
  RotaryScaling scaling;
  std::vector<Number> numbers;
  std::vector<List> lists = {};
};

const std::array<Kind, 5>& kinds() {
  static const Number factor{"factor", "factor", &Rotary::factor, true};
  static const Number original{"original", "original_max_position_embeddings", &Rotary::original, true};
  static const Number length{"length", "attention_factor", &Rotary::length, false};
  static const std::array<Kind, 5> all{
      Kind{"linear", RotaryScaling::linear, {factor}}, Kind{"dynamic", RotaryScaling::dynamic, {factor, original}},
      Kind{"llama3",
           RotaryScaling::llama3,
           {factor,
            {"low", "low_freq_factor", &Rotary::low, true},
            {"high", "high_freq_factor", &Rotary::high, true},
            original}},
      Kind{
          "yarn",
          RotaryScaling::yarn,
          {factor, original, {"fast", "beta_fast", &Rotary::fast, false}, {"slow", "beta_slow", &Rotary::slow, false}, length}},
      Kind{"longrope",
           RotaryScaling::longrope,
           {original, length},
           {{"short", "short_factor", &Rotary::near}, {"long", "long_factor", &Rotary::far}}}};
  return all;
}

const Kind& kind_named(std::string_view name) {
  std::vector<std::string_view> names{"none"};
  for (const auto& kind : kinds()) {
    if (name == kind.name) return kind;
    names.emplace_back(kind.name);
  }
  refuse_scaling(fmt::format("\"{}\" is no kind; there are {}", base::printable(std::string(name)), fmt::join(names, ", ")));
}

// The factor by which rotated vectors are lengthened, because scores would shrink. `factor`: for yarn, the scaling's own; for
// longrope, the ratio of the longest sequence to `original`.
double yarn_length(double factor, double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; }
double usual_length(const Rotary& s, double factor) {
  if (s.scaling == RotaryScaling::yarn) return yarn_length(factor, 1);
  return factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(s.original));
}
bool has_length(const Rotary& s) { return s.scaling == RotaryScaling::yarn || s.scaling == RotaryScaling::longrope; }

const Rotary& checked(const Rotary& s) {
  const auto positive = [](double v) { return v > 0 && std::isfinite(v); };
  if (!(s.factor >= 1) || !std::isfinite(s.factor)) refuse_scaling(fmt::format("factor must be at least 1, not {}", s.factor));
  if (s.scaling != RotaryScaling::linear && !positive(s.original))
    refuse_scaling(fmt::format("the positions of the first training must be more than 0, not {}", s.original));
  if (s.scaling == RotaryScaling::llama3 && !(positive(s.low) && s.high > s.low && std::isfinite(s.high)))
    refuse_scaling(fmt::format("the high frequency factor ({}) must be greater than the low one ({})", s.high, s.low));
  if (has_length(s) && !positive(s.length)) refuse_scaling(fmt::format("the length ({}) must be positive", s.length));
  if (s.scaling == RotaryScaling::longrope && (s.near.empty() || s.near.size() != s.far.size() ||
                                               !std::ranges::all_of(s.near, positive) || !std::ranges::all_of(s.far, positive)))
    refuse_scaling("longrope needs two lists of as many positive factors");
  if (s.scaling == RotaryScaling::yarn && !(positive(s.slow) && s.fast > s.slow && positive(s.fast)))
    refuse_scaling(fmt::format("of yarn, fast ({}) must be greater than slow ({})", s.fast, s.slow));
  return s;
}

// "1/1.05/2.5"
bool parse_list(std::string_view text, std::vector<double>& to) {
  const char* const end = text.data() + text.size();
  for (const char* at = text.data();; ++at) {
    const auto [stop, error] = std::from_chars(at, end, to.emplace_back());
    if (error != std::errc{}) return false;
    if (stop == end) return true;
    if (*stop != '/') return false;
    at = stop;
  }
}

}  // namespace

Rotary parse_rope_scaling(std::string_view text) {
  if (text == "none") return {};
  const auto colon = text.find(':');
  const auto& kind = kind_named(text.substr(0, colon));
  Rotary scaling;
  scaling.scaling = kind.scaling;
  std::vector<std::string_view> told;
  auto rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    const auto one = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const auto equals = one.find('=');
    const auto word = one.substr(0, equals), value = equals == std::string_view::npos ? "" : one.substr(equals + 1);
    if (kind.scaling == RotaryScaling::yarn && word == "whole" && (value == "true" || value == "false")) {
      scaling.whole = value == "true";
      continue;
    }
    bool known = false;
    for (const auto& list : kind.lists)
      if (word == list.word) known = parse_list(value, scaling.*list.field);
    for (const auto& number : kind.numbers) {
      if (word != number.word) continue;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), scaling.*number.field);
      known = error == std::errc{} && end == value.data() + value.size();
      told.push_back(number.word);
    }
    if (!known)
      refuse_scaling(
          fmt::format("\"{}\" is not understood in {}", base::printable(std::string(one)), base::printable(std::string(text))));
  }
  const auto is_told = [&](std::string_view word) { return std::ranges::find(told, word) != told.end(); };
  for (const auto& number : kind.numbers)
    if (number.must && !is_told(number.word)) refuse_scaling(fmt::format("{} needs {}", kind.name, number.word));
  if (has_length(scaling) && !is_told("length")) scaling.length = usual_length(scaling, scaling.factor);
  return checked(scaling);
}

std::string_view kind_of(const Rotary& scaling) {
  for (const auto& kind : kinds())
    if (scaling.scaling == kind.scaling) return kind.name;
  return "none";
}

std::string to_text(const Rotary& scaling) {
  for (const auto& kind : kinds()) {
    if (scaling.scaling != kind.scaling) continue;
    std::vector<std::string> numbers;
    for (const auto& number : kind.numbers) numbers.push_back(fmt::format("{}={}", number.word, scaling.*number.field));
    for (const auto& list : kind.lists) numbers.push_back(fmt::format("{}={}", list.word, fmt::join(scaling.*list.field, "/")));
    if (!scaling.whole) numbers.emplace_back("whole=false");
    return fmt::format("{}:{}", kind.name, fmt::join(numbers, ","));
  }
  return "none";
}

Rotary rope_scaling_of(const json& object, double positions) {
  if (object.is_null()) return {};
  if (!object.is_object()) refuse_scaling("it is no object");
  const auto type = object.value("rope_type", object.value("type", json("default")));
  if (!type.is_string()) refuse_scaling("its type is no text");
  for (const auto& [key, value] : object.items())
    if (value.is_object()) refuse_scaling(fmt::format("it has {} apart", base::printable(key)));
  if (type == "default") return {};
  const auto& kind = kind_named(type.get<std::string>());
  Rotary scaling;
  scaling.scaling = kind.scaling;
  if (kind.scaling != RotaryScaling::linear) scaling.original = positions;
  std::vector<std::string> known{"rope_type", "type",      "rope_theta",           "max_position_embeddings",
                                 "truncate",  "finetuned", "partial_rotary_factor"};
  const auto told = [&](const char* key) -> std::optional<double> {
    known.emplace_back(key);
    const auto at = object.find(key);
    if (at == object.end() || at->is_null()) return std::nullopt;
    if (!at->is_number()) refuse_scaling(fmt::format("{} is no number", key));
    return at->get<double>();
  };
  const bool is_yarn = kind.scaling == RotaryScaling::yarn;
  for (const auto& number : kind.numbers) {
    if (const auto value = told(number.key)) {
      scaling.*number.field = *value;
    } else if (number.must && number.field != &Rotary::original) {
      const bool is_ratio = is_yarn && object.contains(number.key);  // null: the ratio of two numbers of positions
      if (!is_ratio) refuse_scaling(fmt::format("{} needs {}", kind.name, number.key));
    }
  }
  // The library ignores the object's number and counts from max_position_embeddings.
  if (kind.scaling == RotaryScaling::dynamic) scaling.original = positions;
  for (const auto& list : kind.lists) {
    known.emplace_back(list.key);
    const auto at = object.find(list.key);
    const auto is_number = [](const json& one) { return one.is_number(); };
    if (at == object.end() || !at->is_array() || !std::ranges::all_of(*at, is_number))
      refuse_scaling(fmt::format("{} needs {}, a list of numbers", kind.name, list.key));
    scaling.*list.field = at->get<std::vector<double>>();
  }
  if (const auto at = object.find("truncate"); at != object.end()) {
    if (!at->is_boolean() && !at->is_null()) refuse_scaling("truncate is neither true nor false");
    scaling.whole = *at == true;
  }
  if (has_length(scaling)) {
    const auto factor = told("factor").value_or(positions / scaling.original);
    if (is_yarn) scaling.factor = factor;
    const auto above = is_yarn ? told("mscale") : std::nullopt, below = is_yarn ? told("mscale_all_dim") : std::nullopt;
    const bool has_both = above.value_or(0) != 0 && below.value_or(0) != 0;
    const double usual = has_both ? yarn_length(factor, *above) / yarn_length(factor, *below) : usual_length(scaling, factor);
    scaling.length = told("attention_factor").value_or(usual);
  }
  for (const auto& [key, value] : object.items())
    if (!value.is_null() && std::ranges::find(known, key) == known.end())
      refuse_scaling(fmt::format("{} of {} is not known", base::printable(key), kind.name));
  return checked(scaling);
}

json rope_scaling_json(const Rotary& scaling) {
  for (const auto& kind : kinds()) {
    if (scaling.scaling != kind.scaling) continue;
    json object{{"rope_type", kind.name}};
    for (const auto& number : kind.numbers)
      if (scaling.scaling != RotaryScaling::dynamic || number.field != &Rotary::original)  // it is in max_position_embeddings
        object[number.key] =
            number.field == &Rotary::original ? json(static_cast<std::int64_t>(scaling.original)) : json(scaling.*number.field);
    for (const auto& list : kind.lists) object[list.key] = scaling.*list.field;
    if (!scaling.whole) object["truncate"] = false;
    return object;
  }
  return {};
}

}  // namespace terrace::lm
