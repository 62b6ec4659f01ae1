// The table of all options of a run. Flags, TOML keys, `--set`, help texts, defaults, the saved configuration and the
// fingerprint that a resumed run must match all come from it.
//
// Owner:   the table is constant data; RunConfig is the caller's.
// Threads: any.
// Errors:  Error(ErrorKind::refused) that names the key, the value, where it was given and what is accepted. For an unknown key
//          it suggests the nearest known one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <terrace/examples/terrace/config/config_field.h>
#include <terrace/examples/terrace/config/run_config.h>

namespace CLI {
class App;
}

namespace terrace::cli {

struct Option {
  enum class Text { any, required, choice, size, depth, layers, share, device, windows, model };  // what a text field accepts
  // Where the value must be equal. over_resumes: in all starts and on all ranks, if it decides what the run computes.
  // on_all_ranks: on all ranks of this start, if it decides their common steps. nowhere: each rank may have its own.
  enum class Same : std::uint8_t { nowhere, on_all_ranks, over_resumes };

  std::string_view key;      // "batch-size"
  std::string_view section;  // "model", "train", "memory", "run"
  ConfigField field;
  std::string_view help;
  Same same = Same::nowhere;
  double low = 0, high = 0;  // bounds of a number; low == high: no bounds
  bool open_low = false, open_high = false;
  Text text = Text::any;
  std::vector<std::string_view> choices;
  std::string_view alone = {};  // the value of the flag if it is given without one; empty: it needs one
  std::string_view brief = {};  // what -h says of the option; empty: only --help has it
  std::string_view value = {};  // name of the value in the help; empty: the name of its type
  bool of_config_json = false;  // a published model's config.json states it, so people rarely set it

  [[nodiscard]] bool many() const { return field.kind() == ConfigField::Kind::paths; }
  [[nodiscard]] bool flag() const { return field.kind() == ConfigField::Kind::flag; }

  // Modifiers for rows of the table.
  [[nodiscard]] Option common(std::string_view brief_help = {}) && {  // empty: `help` is brief
    brief = brief_help.empty() ? help : brief_help;
    return std::move(*this);
  }
  [[nodiscard]] Option takes(std::string_view name) && {
    value = name;
    return std::move(*this);
  }
  [[nodiscard]] Option or_alone(std::string_view value_alone) && {
    alone = value_alone;
    return std::move(*this);
  }
  [[nodiscard]] Option fact() && {
    of_config_json = true;
    return std::move(*this);
  }
};

std::span<const Option> options();
std::span<const std::string_view> sections();
const Option* find_option(std::string_view key);  // nullptr for an unknown key
std::string accepted(const Option& option);       // "an integer of at least 1"

// A flag of the command line as text, applied after the configuration file. Flags are in the order of the command line.
struct Assignment {
  const Option* option = nullptr;
  std::vector<std::string> values;
};
using Assignments = std::vector<Assignment>;

// Adds a flag for every option of these sections and keys; of all options if `only` is empty. Parsing appends to `out`.
void add_options(CLI::App& app, Assignments& out, std::span<const std::string_view> only = {});

// Each source overrides the one before: defaults, files, `--set`, flags. A model's directory counts at the place where it is
// named.
void apply_toml(RunConfig& config, std::string_view text, const std::string& name);  // `name` for messages
std::string read_config_file(const std::filesystem::path& file);
void apply_file(RunConfig& config, const std::filesystem::path& file);
void apply_set(RunConfig& config, std::string_view assignment);  // "train.steps=5" or "steps=5"
void apply_flags(RunConfig& config, const Assignments& flags);
// If the model is a directory (lm/models/model_dir.h), takes its family, sizes and numbers, and its weights as --init-from.
// Returns false if it is not one.
bool apply_model_dir(RunConfig& config);
// Settings that mean "as usual" get the values of the model's directory, if the directory was named in a lower source.
void keep_usual(RunConfig& config, const RunConfig& of_directory);

// Checks that need several options: --heads that does not divide --hidden, --min-lr above --lr, …
void validate(const RunConfig& config);
void demand_freeze(const RunConfig& config);  // the part of validate() that depends on the numbers of tiles

// Makes all paths absolute, so that the run can be continued from any folder.
RunConfig with_absolute_paths(RunConfig config);
std::string to_toml(const RunConfig& config);  // with a comment for each key; reading it gives the same configuration
nlohmann::json to_json(const RunConfig& config);

// The settings that a resumed run must not change: settings_over_resumes() without the data, fingerprint() with it. Data files
// count by name and size; Error(ErrorKind::refused) if one does not exist.
nlohmann::json settings_over_resumes(const RunConfig& config);
nlohmann::json fingerprint(const RunConfig& config);
// The value of a setting as it is written now. An older version wrote texts such as --rope-scaling as they were given.
nlohmann::json as_written_now(std::string_view key, const nlohmann::json& value);
// "  seed: 1 then, 2 now", one line for each difference; empty if there is none.
std::string describe_difference(const nlohmann::json& then, const nlohmann::json& now, std::string_view where_then = "then",
                                std::string_view where_now = "now");

// Returns `automatic` for "auto"; parses other texts with core's parse_bytes.
std::uint64_t resolve_bytes(const std::string& text, std::uint64_t automatic);

// The candidate with the least edit distance; empty if no candidate is near.
std::string nearest(std::string_view word, std::span<const std::string_view> candidates);
// "; did you mean X?" or empty
std::string suggestion(std::string_view word, std::span<const std::string_view> candidates, std::string_view prefix = "");

}  // namespace terrace::cli
