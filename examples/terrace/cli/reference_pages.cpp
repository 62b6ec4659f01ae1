#include <terrace/examples/terrace/cli/reference_pages.h>

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include <terrace/examples/terrace/cli/help_text.h>
#include <terrace/examples/terrace/config/exit_codes.h>
#include <terrace/examples/terrace/config/setting_flags.h>
#include <terrace/examples/terrace/metrics/metric_table.h>
#include <terrace/examples/terrace/metrics/prometheus_sink.h>
#include <terrace/parallel/mesh/features.h>

namespace terrace::cli {
namespace {

constexpr std::string_view kAboutSettings = R"(
## Settings

Every setting is a flag and a key of a TOML file for `--config`, in the section that its heading names: `--batch-size 4` is
`batch-size = 4` in `[train]`, and `--set train.batch-size=4`. A flag without a value is `true` or `false` in a file. `terrace config`
prints all keys with the values that a command line gives.
)";

constexpr std::string_view kAboutMetrics = R"(
`RUN/metrics.jsonl` has one JSON object for each step. A dot in a name below stands for an object inside the object. `--tensorboard` and
`--prometheus FILE` write the same numbers under the names of the other two columns; every sample for Prometheus has the label `run`. A
metric that a step does not have is absent. A step whose update was skipped also has `"skipped": true` in the file, and every line ends
with its checksum `xxh3`.

| `metrics.jsonl` | TensorBoard | Prometheus | unit | meaning |
|---|---|---|---|---|
)";

constexpr std::string_view kAboutExitCodes = R"(
Every command ends with one of these codes. [Errors and warnings](errors.md) says what is safe afterwards. Inside a process,
`Error::kind()` (`core/base/error.h`) says the same.

| code | meaning | what to do next |
|---|---|---|
)";

constexpr std::string_view kAboutExclusions = R"(
The library has one table of the features that exclude each other (`parallel/mesh/features.h`). The layers, the plan,
`terrace plan --search` and the command line read it. Beyond the table, a plan refuses a setting that lacks what it needs, and
says what to change: an optimizer that needs whole matrices cannot update matrices that lie in tiles, `--compress-gradients`
needs `--zero` 2 or 3 or `--canonical-reduction`, and `--compress-weights` needs `--zero` 3. Numbers must also fit each other,
which an error says with the nearest numbers that do.

| this | does not work with | because |
|---|---|---|
)";

std::string beginning(std::string_view name, std::string_view title) {
  return fmt::format("# {}\n\nThe program writes this page from its own table: `terrace man {} > docs/reference/{}.md`.\n",
                     title, name, name);
}

// Escapes text for a cell of a table. A | would end the cell, and Markdown would read other characters as HTML, emphasis or
// code.
std::string in_cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("|<*`").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string code(std::string_view text) {
  if (text.empty()) return "";
  std::string out = "`";
  for (const char c : text) out += c == '|' ? "\\|" : std::string(1, c);
  return out + "`";
}

// The text with a capital letter, unless it begins with a flag or a name.
std::string sentence(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text + ".";
}

void add_rows(std::string& out, const std::vector<const FlagText*>& flags, std::string_view first_column) {
  out += fmt::format("\n| {} | default | meaning |\n|---|---|---|\n", first_column);
  for (const auto* const flag : flags)
    out += fmt::format("| {} | {} | {} |\n", code(flag->value.empty() ? flag->name : flag->name + " " + flag->value),
                       code(flag->fallback), in_cell(flag->help));
}

void add_command(std::string& out, const CommandText& command, const CommandText& program, std::size_t all_settings) {
  out += fmt::format("\n## {}\n\n    {}\n\n{}\n", command.called(), usage_of(command), sentence(command.help));
  std::vector<const FlagText*> own;
  std::vector<std::string> settings;
  for (const auto& flag : command.flags)
    if (flag.setting)
      settings.push_back(code(flag.name));
    else
      own.push_back(&flag);
  if (!own.empty()) add_rows(out, own, "flag");
  if (settings.size() == all_settings) {
    out += "\nIt takes all [settings](#settings).\n";
  } else if (!settings.empty()) {
    out += "\nIt takes these [settings](#settings): ";
    for (const auto& name : settings) out += (name == settings.front() ? "" : ", ") + name;
    out += ".\n";
  }
  if (!command.notes.empty() && command.notes != program.notes) out += "\n" + command.notes + "\n";
  if (!command.examples.empty()) out += "\n";
  for (const auto& line : command.examples) out += "    " + line + "\n";
  for (const auto& below : command.commands) add_command(out, below, program, all_settings);
}

std::string flags_page(const CommandText& program) {
  auto out = beginning("flags", "Commands, flags and keys");
  out += fmt::format("\n    {}\n\n{}\n", usage_of(program), program.notes);
  const auto help = help_flag();
  std::vector<const FlagText*> own{&help};
  for (const auto& flag : program.flags) own.push_back(&flag);
  add_rows(out, own, "flag");
  const auto sections = settings_of(program);
  std::size_t count = 0;
  for (const auto& section : sections) count += section.settings.size();
  for (const auto& command : program.commands) add_command(out, command, program, count);
  out += kAboutSettings;
  for (const auto& section : sections) {
    out += fmt::format("\n### {}\n", section.title());
    std::vector<const FlagText*> rows;
    for (const auto& setting : section.settings) rows.push_back(&setting);
    add_rows(out, rows, "setting");
  }
  return out;
}

std::string metrics_page(const CommandText&) {
  auto out = beginning("metrics", "Metrics");
  out += kAboutMetrics;
  for (const auto& metric : metric_table()) {
    std::string part(metric.key.empty() ? metric.label : "");
    std::ranges::transform(part, part.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    const auto behind = [&part](char separator) { return part.empty() ? "" : separator + part; };
    const auto label = part.empty() ? "" : fmt::format("{{{}=\"{}\"}}", metric.label, part);
    out +=
        fmt::format("| {} | {} | {} | {} | {} |\n", code(metric.name('.') + behind('.')), code(metric.name('/') + behind('/')),
                    code(prometheus_name(metric) + label), metric.unit, in_cell(metric.help));
  }
  return out;
}

std::string exit_codes_page(const CommandText&) {
  auto out = beginning("exit-codes", "Exit codes");
  out += kAboutExitCodes;
  for (const auto& exit : exit_codes())
    out += fmt::format("| {} | {}: {} | {} |\n", static_cast<int>(exit.code), exit.brief, in_cell(exit.meaning),
                       in_cell(exit.advice));
  return out;
}

std::string exclusions_page(const CommandText&) {
  auto out = beginning("exclusions", "What does not go together");
  out += kAboutExclusions;
  const auto words = [](Feature feature) {
    auto text = std::string(words_of(feature).words);
    if (const auto at = text.find("{}"); at != std::string::npos) text.replace(at, 2, "N");
    return in_cell(with_flags(text));
  };
  for (const auto& [one, other, because] : exclusions())
    out += fmt::format("| {} | {} | {} |\n", words(one), words(other), in_cell(with_flags(because)));
  return out;
}

constexpr ReferencePage kPages[] = {
    {"flags", flags_page}, {"metrics", metrics_page}, {"exit-codes", exit_codes_page}, {"exclusions", exclusions_page}};

}  // namespace

std::span<const ReferencePage> reference_pages() { return kPages; }

}  // namespace terrace::cli
