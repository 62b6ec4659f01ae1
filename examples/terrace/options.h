// The one table of everything that a run can be told. Flags, TOML keys, `--set`, help texts, defaults, the saved
// configuration and the fingerprint that a resumed run must share all come from it.
//
// Owner:   the table is constant data; RunConfig is the caller's.
// Threads: any.
// Errors:  Error(Exit::usage) that names the key, the value, where it was given and what is accepted; an unknown key comes
//          with the nearest known one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <terrace/examples/terrace/run_config.h>

namespace CLI {
class App;
}

namespace terrace::cli {

struct Option {
  using Field = std::variant<std::int64_t RunConfig::*, std::uint64_t RunConfig::*, double RunConfig::*, bool RunConfig::*,
                             std::string RunConfig::*, std::filesystem::path RunConfig::*,
                             std::vector<std::filesystem::path> RunConfig::*>;
  enum class Text { any, required, choice, size, depth, layers, share, device };  // what a text field takes

  std::string_view key;      // "batch-size"
  std::string_view section;  // "model", "train", "memory", "run"
  Field field;
  std::string_view help;
  bool fingerprint = false;  // a resumed run must have the same value
  double low = 0, high = 0;  // of numbers; low == high: no bounds
  bool open_low = false, open_high = false;
  Text text = Text::any;
  std::vector<std::string_view> choices;

  [[nodiscard]] bool many() const { return std::holds_alternative<std::vector<std::filesystem::path> RunConfig::*>(field); }
  [[nodiscard]] bool flag() const { return std::holds_alternative<bool RunConfig::*>(field); }
};

std::span<const Option> options();
std::span<const std::string_view> sections();
const Option* find_option(std::string_view key);  // nullptr: there is none
std::string accepted(const Option& option);       // "an integer of at least 1"

// What was given as text, to be applied after the configuration file: flags in the order of the command line.
struct Assignment {
  const Option* option = nullptr;
  std::vector<std::string> values;
};
using Assignments = std::vector<Assignment>;

// Adds a flag for every option of these sections and keys (all, when both are empty); parsing appends to `out`.
void add_options(CLI::App& app, Assignments& out, std::span<const std::string_view> only = {});

// Each step overrides the one before: defaults, file, `--set`, flags.
void apply_toml(RunConfig& config, std::string_view text, const std::string& name);  // `name` for messages
void apply_file(RunConfig& config, const std::filesystem::path& file);
void apply_set(RunConfig& config, std::string_view assignment);  // "train.steps=5" or "steps=5"
void apply_flags(RunConfig& config, const Assignments& flags);

// What no single option can see: heads that do not divide hidden, a minimum above the learning rate, …
void validate(const RunConfig& config);

std::string to_toml(const RunConfig& config);  // with a comment a key; read back, it gives the same configuration
nlohmann::json to_json(const RunConfig& config);

// What a resumed run must agree on. Data files count by name and size; Error(Exit::usage) when one is not there.
nlohmann::json fingerprint(const RunConfig& config);
// "  seed: 1 then, 2 now", one difference a line; empty when they agree.
std::string describe_difference(const nlohmann::json& then, const nlohmann::json& now);

// "auto" gives `automatic`, everything else is core's parse_bytes.
std::uint64_t resolve_bytes(const std::string& text, std::uint64_t automatic);

// The candidate with the least edit distance, empty when none is near enough to be meant.
std::string nearest(std::string_view word, std::span<const std::string_view> candidates);
// "; did you mean X?" or empty
std::string suggestion(std::string_view word, std::span<const std::string_view> candidates, std::string_view prefix = "");

}  // namespace terrace::cli
