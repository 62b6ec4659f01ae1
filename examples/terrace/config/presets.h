// Settings for common tasks, by name: the files of examples/presets, which are part of the program. Everything that a user
// gives overrides a preset.
//
// A file's first line says what it is for. Two more lines of its comment may say more:
//   # Machine: gpu-24gb    the shipped cluster profile whose budgets it uses
//   # Needs: --model DIR   it trains an existing model; the shape in [model] is only for plans without one
//
// Threads: any; constant. Errors: Error(ErrorKind::refused) that lists the names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace terrace::cli {

struct Preset {
  std::string_view name, text;  // TOML for apply_toml()

  [[nodiscard]] std::string_view about() const;    // the first line of the text
  [[nodiscard]] std::string_view machine() const;  // empty: any machine
  [[nodiscard]] bool needs_model() const;
};

std::span<const Preset> presets();  // sorted by name
const Preset& preset_named(std::string_view name);
std::string preset_names(std::string_view between);
std::string preset_list();  // text of `terrace help presets`

inline constexpr std::string_view kListPresets = "help";  // given in place of a name: lists the presets

}  // namespace terrace::cli
