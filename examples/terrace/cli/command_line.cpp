#include <terrace/examples/terrace/cli/command_line.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <new>
#include <optional>
#include <sstream>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <terrace/core/base/error.h>
#include <terrace/core/base/notice.h>
#include <terrace/core/base/printable.h>
#include <terrace/examples/lm/models/model_dir.h>
#include <terrace/examples/terrace/base/launched.h>
#include <terrace/examples/terrace/cli/version_text.h>
#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/config/exit_codes.h>
#include <terrace/examples/terrace/config/input_files.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/config/parse_words.h>
#include <terrace/examples/terrace/config/presets.h>
#include <terrace/examples/terrace/config/setting_flags.h>
#include <terrace/examples/terrace/config/usual_settings.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/data/found_data.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/shipped_clusters.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/examples/terrace/run/weights_reader.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAbout = "terrace trains models that do not fit in memory";

std::vector<std::string_view> command_names() {
  std::vector<std::string_view> names;
  for (const auto& c : commands()) names.push_back(c.name);
  return names;
}

// What CLI11 fills while it parses. It is applied afterwards, in the order of precedence.
struct Parsed {
  std::optional<std::string> preset;
  std::vector<std::string> config_files;
  std::size_t files_before_model = 0;  // how many --config files come before --model
  std::vector<std::string> sets;
  Assignments flags;
};

void add_command(CLI::App& app, const Command& command, CommandLine& out, Parsed& parsed) {
  auto* const sub = app.add_subcommand(std::string(command.name), std::string(command.help));
  sub->allow_extras();
  const bool all = command.takes_all();
  if (all) {
    sub->add_option("--preset", parsed.preset,
                    "settings of a common task, below a model's directory, --config, --set and flags; help: what each is for")
        ->type_name(fmt::format("{}|{}", preset_names("|"), kListPresets));
    sub->add_option(
           "--config", parsed.config_files,
           "TOML file with the same names, flat or in sections; repeatable, later files override; see examples/presets")
        ->type_name("FILE")
        ->expected(1)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    sub->add_option("--set", parsed.sets, "override one key: --set train.steps=100; repeatable")
        ->type_name("KEY=VALUE")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  if (!command.takes.empty())
    add_options(*sub, parsed.flags,
                all ? std::span<const std::string_view>{} : std::span<const std::string_view>(command.takes));
  if (!command.positional.empty()) {
    sub->add_option("run", out.positional,
                    command.reads_weights ? "the directory of a run, or of a model with config.json and weights"
                    : command.positional.starts_with("RUN") ? "the run directory"
                                                            : "which one")
        ->type_name(std::string(command.positional));
    if (command.reads_weights)
      sub->add_option("--adapter", out.generate.adapter, "adapters of the model in a directory, as PEFT writes them")
          ->type_name("DIR");
  }
  if (command.add_options) command.add_options(*sub, out);
}

void add_commands(CLI::App& app, CommandLine& out, Parsed& parsed) {
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", version_text, "print the version and what it was built with, and exit");
  app.footer("Sizes: 512MiB, 16GB (decimal), auto, unlimited. Exit codes: " + brief_exit_codes() + ".");
  for (const auto& command : commands()) add_command(app, command, out, parsed);
}

bool reads_weights(const CommandLine& line) { return find_command(line.command)->reads_weights; }

// A file of settings. It is read only once, because it may be a pipe.
struct ConfigText {
  std::string name, text;
};

bool names_model(const std::function<void(RunConfig&)>& apply) {
  RunConfig config;
  apply(config);
  return config.is_given("model");
}

// The directory of a run whose own settings everything given overrides; empty: none. `directory`: the one that a command reads.
fs::path run_below(const CommandLine& line, const Parsed& parsed, const std::vector<ConfigText>& files,
                   const fs::path& directory) {
  if (reads_weights(line)) return directory;
  RunConfig given;
  for (const auto& file : files) apply_toml(given, file.text, file.name);
  for (const auto& set : parsed.sets) apply_set(given, set);
  apply_flags(given, parsed.flags);
  if (!given.run.resume.names_run()) return {};
  demand_run_to_resume(given.run.resume.run);
  return fs::exists(fs::path(given.run.resume.run) / kConfigFile) ? fs::path(given.run.resume.run) : fs::path();
}

// Flags that a run was given for one start do not count for the next start, or for reading the run.
void take_own_settings(RunConfig& config, const ConfigText& own) {
  apply_toml(config, own.text, own.name);
  // The tokenizer file that the run began with may have changed since, so the run's copy is used.
  const auto run = fs::path(own.name).parent_path();
  if (const auto kept = tokenizer_kept_by(run); !kept.empty()) config.data.tokenizer = kept.string();
  config.run.json = config.run.force = false;
  config.parallel.stage_layers.clear();    // with the same pipeline, the run's stages are kept anyway
  if (launched()) config.parallel.dp = 0;  // as many as are launched now
}

using Layer = std::function<void(RunConfig&)>;

// The later layer of --steps and --epochs counts. A run's own file, the first layer if there is one, has both.
double epochs_of(std::span<const Layer> layers, bool has_own, const std::string& command) {
  double epochs = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    RunConfig of_layer;
    layers[i](of_layer);
    const bool has_steps = of_layer.is_given("steps"), has_epochs = of_layer.train.epochs > 0;
    if (has_steps && has_epochs && !(has_own && i == 0))
      refuse("--steps and --epochs both say how long to train: give one of them", command);
    if (has_steps || of_layer.is_given("epochs")) epochs = of_layer.train.epochs;
  }
  return epochs;
}

// Applies a preset, a run's own file, files, --set and flags; each overrides the one before. A model's directory counts at the
// place where it is named: it overrides the files before it, and everything beside and after it, --set and flags override it.
RunConfig resolve(const CommandLine& line, const Parsed& parsed, const fs::path& directory = {}) {
  std::vector<ConfigText> files;
  for (const auto& file : parsed.config_files) files.push_back({file, read_config_file(file)});
  const auto run = run_below(line, parsed, files, directory);
  if (!run.empty()) files.insert(files.begin(), {(run / kConfigFile).string(), read_config_file(run / kConfigFile)});
  const auto apply_files = [&](RunConfig& config, std::size_t from, std::size_t to) {
    for (auto i = from; i < to; ++i)
      i == 0 && !run.empty() ? take_own_settings(config, files[i]) : apply_toml(config, files[i].text, files[i].name);
  };
  std::size_t place = 0;
  for (std::size_t i = 0; i < files.size(); ++i)
    if (names_model([&](RunConfig& config) { apply_files(config, i, i + 1); })) place = i;
  for (const auto& set : parsed.sets)
    if (names_model([&](RunConfig& config) { apply_set(config, set); })) place = files.size();
  if (std::ranges::any_of(parsed.flags, [](const Assignment& flag) { return flag.option->key == "model"; }))
    place = parsed.files_before_model + (run.empty() ? 0 : 1);
  const auto apply_above = [&](RunConfig& config) {
    apply_files(config, place, files.size());
    for (const auto& set : parsed.sets) apply_set(config, set);
    apply_flags(config, parsed.flags);
  };
  const auto apply_preset = [&](RunConfig& config) {
    if (line.preset) apply_toml(config, line.preset->text, fmt::format("preset {}", line.preset->name));
  };
  if (line.preset && !run.empty())
    refuse(fmt::format("--preset {} would stand below the settings of the run that --resume names, which are complete: leave "
                       "it out, or give what is to change as flags",
                       line.preset->name),
           line.command);
  RunConfig below;
  apply_preset(below);
  apply_files(below, 0, place);
  auto config = below;
  apply_above(config);
  below.run.model_dir = config.run.model_dir;
  below.model.family = config.model.family;
  const bool of_model = apply_model_dir(below);
  if (of_model) {
    config = below;
    apply_above(config);
    config.run.model_dir.clear();
    config.model.family = below.model.family;
    keep_usual(config, below);
    // If the user gave another value, the program has not chosen it.
    std::erase_if(config.found.chosen, [&](const std::string& said) {
      return (said.starts_with("--dtype ") && config.model.dtype != below.model.dtype) ||
             (said.starts_with("--seq-len ") && config.model.seq_len != below.model.seq_len);
    });
  }
  std::vector<Layer> layers;
  if (line.preset) layers.emplace_back(apply_preset);
  for (std::size_t i = 0; i < files.size(); ++i) layers.emplace_back([&, i](RunConfig& c) { apply_files(c, i, i + 1); });
  layers.emplace_back([&](RunConfig& c) {
    for (const auto& set : parsed.sets) apply_set(c, set);
  });
  layers.emplace_back([&](RunConfig& c) { apply_flags(c, parsed.flags); });
  config.train.epochs = epochs_of(layers, !run.empty(), line.command);
  complete(config, of_model);
  return config;
}

// The settings for reading a directory: a run's own, or those of a model's directory.
RunConfig resolve_to_read(const CommandLine& line, const Parsed& parsed, const fs::path& directory) {
  const auto& adapter = line.generate.adapter;
  if (is_run(directory)) {
    if (!adapter.empty())
      refuse(fmt::format("--adapter is for a model's directory, and \"{}\" is a run", directory.string()), line.command);
    return resolve(line, parsed, directory);
  }
  if (!fs::exists(directory / lm::kModelConfigFile))
    refuse(fmt::format("\"{}\" is neither a run, because it has no {}, nor a model, because it has no {}", directory.string(),
                       kConfigFile, lm::kModelConfigFile),
           line.command);
  auto config = settings_of_model(directory, adapter);
  apply_flags(config, parsed.flags);
  return config;
}

// The first word must be a command. CLI11 would accept the flags of a command before its name.
void refuse_unknown_command(int argc, const char* const* argv) {
  const auto names = command_names();
  if (argc < 2) refuse(fmt::format("the first argument must be a command: {}", fmt::join(names, ", ")), "");
  const std::string word = argv[1];
  if (word.starts_with('-')) {
    static constexpr std::array<std::string_view, 3> kFlags{"--help", "--version", "-h"};
    if (std::ranges::find(kFlags, word) != kFlags.end()) return;
    refuse(fmt::format("the first argument must be a command, not {}", word), "");
  }
  if (std::ranges::find(names, word) == names.end()) {
    refuse(fmt::format("unknown command \"{}\"{}", word, suggestion(word, names)), "");
  }
}

// The advice that an error of std::filesystem lacks.
std::string advice_on(const fs::filesystem_error& error) {
  if (error.path1().empty()) return "change to a folder that exists";
  switch (error.code().value()) {
    case EACCES:
    case EPERM: return "change the permissions there, or give another path";
    case EROFS: return "give a path on a file system that can be written";
    case ENOSPC:
    case EDQUOT: return "make room there, or give another path";
    default: return "check what is there, or give another path";
  }
}

void demand_model_of_preset(const CommandLine& line) {
  if (line.command != "train" || !line.preset || !line.preset->needs_model() || !line.config.run.init_from.empty()) return;
  refuse(fmt::format("--preset {} trains a model that is there, and none is given: add --model DIR, a directory with its "
                     "config.json and weights",
                     line.preset->name),
         line.command);
}

// A preset for a GPU can also be planned on a machine without one: as for the machine that the preset names.
void plan_where_preset_is_for(CommandLine& line) {
  auto& config = line.config;
  if (!line.preset || line.preset->machine().empty() || !line.plan.cluster_profile.empty()) return;
  if (!config.on_gpu() || config.plan.assumed_costs || has_gpus(config)) return;
  line.plan.cluster_profile = line.preset->machine();
  config.found.chosen.push_back(
      fmt::format("--cluster-profile {} (that of the preset: no GPU was found here)", line.preset->machine()));
}

std::size_t files_before_model(const CLI::App& app) {
  std::size_t files = 0, before = 0;
  for (const auto* const option : app.parse_order()) {
    if (option->check_name("--config")) ++files;
    if (option->check_name("--model")) before = files;
  }
  return before;
}

// Each error begins a line; the lines that explain it are indented below it.
std::string each_with_error(const std::string& text) {
  std::istringstream lines(text);
  std::string all;
  for (std::string line; std::getline(lines, line);) all += (line.starts_with(' ') ? "" : "error: ") + line + "\n";
  return all;
}

}  // namespace

CommandText describe_program() {
  CommandLine line;
  Parsed parsed;
  CLI::App app(kAbout, "terrace");
  add_commands(app, line, parsed);
  auto program = describe_command(app, "");
  for (auto& text : program.commands)
    if (auto* const describe = find_command(text.name)->describe) text = describe();
  return program;
}

CommandLine parse(int argc, const char* const* argv) {
  refuse_unknown_command(argc, argv);
  CommandLine line;
  Parsed parsed;
  CLI::App app(kAbout, "terrace");
  add_commands(app, line, parsed);

  line.answer = parse_words(app, argc, argv);
  if (&chosen(app) != &app) line.command = chosen(app).get_name();
  if (!line.answer.empty()) return line;
  const auto& command = *find_command(line.command);
  if (parsed.preset == kListPresets)
    line.answer = preset_list();
  else if (command.answer)
    line.answer = command.answer(line);
  parsed.files_before_model = files_before_model(chosen(app));
  if (!line.answer.empty()) return line;
  const bool of_training = command.takes_all();
  if (!of_training && command.check) command.check(line);
  if (reads_weights(line)) {
    for (const auto& directory : line.positional) line.configs.push_back(resolve_to_read(line, parsed, directory));
    for (auto& config : line.configs) find_device(config, 1);
    line.config = line.configs.front();
    return line;
  }
  if (parsed.preset) line.preset = &preset_named(*parsed.preset);
  line.config = resolve(line, parsed);
  demand_model_of_preset(line);
  if (const auto place = launched(); of_training || command.finds_device)
    find_device(line.config, place ? place->local_ranks : line.config.parallel.ranks());
  if (of_training) {
    if (line.config.data.format == DataFormat::automatic) line.config.data.format = found_format(line.config);
    validate(line.config);
    if (command.check) command.check(line);
    demand_inputs_stay(line, parsed.config_files);
  }
  if (line.command == "plan") plan_where_preset_is_for(line);
  return line;
}

int report_error(const std::exception& error, std::FILE* to) try {
  if (dynamic_cast<const std::bad_alloc*>(&error)) throw std::bad_alloc();
  const auto* const file = dynamic_cast<const fs::filesystem_error*>(&error);
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system && system->code() == std::errc::resource_unavailable_try_again) {
    base::say(to,
              "error: no thread can be started: there are too many, or no memory is left for one\n"
              "  raise `ulimit -u` or the cgroup's pids.max, or lower --threads, --dp or --pp\n");
    return static_cast<int>(Exit::runtime);
  }
  const auto what = file ? fmt::format("{}\n  {}", describe(error), advice_on(*file)) : std::string(error.what());
  base::say(to, each_with_error(base::printable_lines(with_flags(what))));
  const auto* const known = dynamic_cast<const Error*>(&error);
  return static_cast<int>(exit_of(known ? known->kind() : ErrorKind::failed));
} catch (const std::bad_alloc&) {  // thrown by the error or its text: what follows needs no memory
  base::say(to,
            "error: no memory is left for the program itself\n"
            "  raise the limit (`ulimit -v`, the cgroup's memory.max), end other programs, or lower --host-memory and "
            "--device-memory\n");
  return static_cast<int>(Exit::runtime);
}

}  // namespace terrace::cli
