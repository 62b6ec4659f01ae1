#include <terrace/parallel/model/param_group.h>
#include <terrace/parallel/model/trimmed.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <regex>

#include <terrace/core/base/error.h>
#include <terrace/core/base/refused_setting.h>

namespace terrace {
namespace {

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw RefusedSetting(
      "param-groups",
      fmt::format("`param-groups`: group \"{}\": {}\n  a group is PATTERN:rate=NUMBER,decay=NUMBER,clip=NUMBER, with "
                  "one or more of the "
                  "three; rate and decay multiply `lr` and `weight-decay`, clip is a norm as in `grad-clip`",
                  text, why));
}

std::regex regex_of(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& e) {
    refuse(pattern, fmt::format("the pattern is not a regular expression: {}", e.what()));
  }
}

ParamGroup parse_param_group(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) refuse(text, "there is no pattern followed by ':'");
  ParamGroup group{.pattern = std::string(text.substr(0, colon)), .rate = {}, .decay = {}, .clip = {}};
  (void)regex_of(group.pattern);
  for (auto rest = text.substr(colon + 1);;) {
    const auto comma = rest.find(',');
    const auto item = rest.substr(0, comma);
    const auto equals = item.find('=');
    const auto key = item.substr(0, equals);
    auto* const to = key == "rate" ? &group.rate : key == "decay" ? &group.decay : key == "clip" ? &group.clip : nullptr;
    if (!to || equals == std::string_view::npos) refuse(text, fmt::format("\"{}\" is not one of rate=, decay=, clip=", item));
    if (*to) refuse(text, fmt::format("{} is given twice", key));
    const auto digits = item.substr(equals + 1);
    double value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || end != digits.data() + digits.size() || !std::isfinite(value) || value < 0)
      refuse(text, fmt::format("{} is \"{}\"; it must be a finite number and not negative", key, digits));
    *to = value;
    if (comma == std::string_view::npos) return group;
    rest = rest.substr(comma + 1);
  }
}

}  // namespace

std::vector<ParamGroup> parse_param_groups(std::string_view text) {
  std::vector<ParamGroup> groups;
  while (!model::trimmed(text).empty()) {
    const auto end = text.find(';');
    groups.push_back(parse_param_group(model::trimmed(text.substr(0, end))));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  return groups;
}

bool any_clips(std::span<const ParamGroup> groups) {
  return std::ranges::any_of(groups, [](const ParamGroup& group) { return group.clip.has_value(); });
}

void apply_groups(std::span<const ParamGroup> groups, std::vector<std::vector<ParamSpec>>& params) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& group = groups[g];
    const auto pattern = regex_of(group.pattern);
    bool found = false;
    for (auto& layer : params)
      for (auto& param : layer) {
        const auto is_of_group = [&](const std::string& name) { return std::regex_search(name, pattern); };
        const auto others = std::ranges::count_if(param.dealt, is_of_group);
        found |= others != 0;
        // Ranks add up the squares of the parameters in one place, so these must be clipped together.
        if (group.clip && others != 0 && others != std::ssize(param.dealt))
          refuse(group.pattern,
                 fmt::format("it clips {} together, and not all experts that lie in the same place of the expert "
                             "ranks; let the pattern match all experts, or none",
                             param.name));
        if (!is_of_group(param.name)) continue;
        found = true;
        param.rate = group.rate.value_or(param.rate);
        param.decay = group.decay.value_or(param.decay);
        if (group.clip) param.clip_group = static_cast<std::int32_t>(g);
      }
    if (found) continue;
    std::string some;
    for (const auto& layer : params)
      if (!layer.empty()) some += fmt::format("{}{}", some.empty() ? "" : ", ", layer.front().name);
    refuse(group.pattern, fmt::format("no parameter matches; the parameters are {}, …", some));
  }
}

}  // namespace terrace
