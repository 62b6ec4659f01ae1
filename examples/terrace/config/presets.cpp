#include <terrace/examples/terrace/config/presets.h>

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/terrace/config/options.h>

namespace terrace::cli {
namespace {

std::string_view line_from(std::string_view text, std::size_t at) { return text.substr(at, text.find('\n', at) - at); }

// The text behind "# Machine: " or "# Needs: " in the comment; empty: none.
std::string_view stated(std::string_view text, std::string_view what) {
  const auto begin = fmt::format("\n# {}: ", what);
  const auto at = text.find(begin);
  return at == std::string_view::npos ? std::string_view() : line_from(text, at + begin.size());
}

std::vector<std::string_view> names_of_presets() {
  std::vector<std::string_view> all;
  for (const auto& preset : presets()) all.push_back(preset.name);
  return all;
}

}  // namespace

std::string_view Preset::about() const { return line_from(text, std::string_view("# ").size()); }
std::string_view Preset::machine() const { return stated(text, "Machine"); }
bool Preset::needs_model() const { return !stated(text, "Needs").empty(); }

const Preset& preset_named(std::string_view name) {
  const auto all = presets();
  const auto found = std::ranges::find(all, name, &Preset::name);
  if (found != all.end()) return *found;
  throw base::Refused(
      fmt::format("--preset {}: there is none of this name{}\n  the presets are {}; terrace help presets says what they "
                  "are for",
                  base::printable(name), suggestion(name, names_of_presets()), preset_names(", ")));
}

std::string preset_names(std::string_view between) { return fmt::format("{}", fmt::join(names_of_presets(), between)); }

std::string preset_list() {
  std::size_t widest = 0;
  for (const auto& preset : presets()) widest = std::max(widest, preset.name.size());
  std::string out = "Presets of train, plan and config:\n";
  for (const auto& preset : presets()) out += fmt::format("  {:<{}}  {}\n", preset.name, widest, preset.about());
  return out +
         "What a preset gives stands below a model's directory, --config, --set and flags.\n"
         "  $ terrace config --preset lora-8b-24gb\n"
         "  $ terrace plan --preset lora-8b-24gb\n"
         "  $ terrace train --preset lora-8b-24gb --model Llama-3.1-8B --data chats.jsonl\n";
}

}  // namespace terrace::cli
