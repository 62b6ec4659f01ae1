#include <terrace/parallel/model/freeze.h>
#include <terrace/parallel/model/trimmed.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include <terrace/core/base/edit_distance.h>
#include <terrace/core/base/refused_setting.h>

namespace terrace::model {
namespace {

constexpr std::size_t kShown = 3;  // names in a message

bool matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern.front() == '*') return matches(pattern.substr(1), text) || (!text.empty() && matches(pattern, text.substr(1)));
  return !text.empty() && (pattern.front() == '?' || pattern.front() == text.front()) &&
         matches(pattern.substr(1), text.substr(1));
}

// Matches the whole name, or the part of it after a dot.
bool matches_name(std::string_view pattern, std::string_view name) {
  for (;;) {
    if (matches(pattern, name)) return true;
    const auto dot = name.find('.');
    if (dot == std::string_view::npos) return false;
    name.remove_prefix(dot + 1);
  }
}

// Expert ranks have different names for this parameter, but must freeze the same ones, so every name is matched.
bool matches_param(std::string_view pattern, const ParamSpec& param) {
  return matches_name(pattern, param.name) ||
         std::ranges::any_of(param.dealt, [&](const std::string& name) { return matches_name(pattern, name); });
}

// Distance to the name or to one of its dotted suffixes, whichever is smaller.
std::size_t distance_to_name(std::string_view pattern, std::string_view name) {
  auto least = base::edit_distance(pattern, name);
  for (auto dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1))
    least = std::min(least, base::edit_distance(pattern, name.substr(dot + 1)));
  return least;
}

[[noreturn]] void refuse_unmatched(const std::string& pattern, const Model& model,
                                   const std::vector<std::vector<ParamSpec>>& params) {
  std::vector<std::string> names;
  for (std::size_t l = 0; l < params.size(); ++l) {
    names.push_back(model.layers[l]->name());
    for (const auto& param : params[l])
      if (!param.tied) names.push_back(param.name);
  }
  std::ranges::stable_sort(names, {}, [&](const std::string& name) { return distance_to_name(pattern, name); });
  names.resize(std::min(names.size(), kShown));
  throw RefusedSetting("freeze",
                       fmt::format("`freeze`: no parameter and no layer matches \"{}\"\n  the nearest names are {}; * "
                                   "stands for any text",
                                   pattern, fmt::join(names, ", ")));
}

}  // namespace

std::vector<std::string> parse_freeze(std::string_view text) {
  std::vector<std::string> patterns;
  while (!trimmed(text).empty()) {
    const auto end = text.find(',');
    const auto pattern = trimmed(text.substr(0, end));
    if (pattern.empty())
      throw RefusedSetting("freeze", "`freeze` has an empty pattern\n  give names separated by single commas");
    patterns.emplace_back(pattern);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  return patterns;
}

void apply_freeze(std::span<const std::string> patterns, const Model& model, std::vector<std::vector<ParamSpec>>& params) {
  std::set<std::string> frozen;
  for (const auto& pattern : patterns) {
    bool found = false;
    for (std::size_t l = 0; l < params.size(); ++l) {
      const bool whole_layer = matches_name(pattern, model.layers[l]->name());
      for (auto& param : params[l]) {
        if (!whole_layer && !matches_param(pattern, param)) continue;
        frozen.insert(param.name);
        found = true;
      }
    }
    if (!found) refuse_unmatched(pattern, model, params);
  }
  bool any = false;
  for (auto& layer : params)
    for (auto& param : layer) {
      param.frozen |= frozen.contains(param.name);
      any |= !param.frozen;
    }
  if (!patterns.empty() && !any) throw RefusedSetting("freeze", "`freeze` leaves no parameter to train\n  give fewer patterns");
}

}  // namespace terrace::model
