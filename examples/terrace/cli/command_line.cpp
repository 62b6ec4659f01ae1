// g++ 12 wrongly warns of a null pointer in CLI11's inlined string splitting.
#pragma GCC diagnostic ignored "-Wnull-dereference"

#include <terrace/examples/terrace/cli/command_line.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <map>
#include <memory>
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

// The commands and the options that each accepts, in the order of the help.
struct Command {
  std::string_view name, help;
  std::vector<std::string_view> takes;  // sections and keys; "all": everything
  std::string_view positional;          // "RUN", "STORE"; empty: none
};

const std::vector<Command>& commands() {
  static const std::vector<Command> all{
      {"train", "train a model within the given memory budgets", {"all"}, ""},
      {"plan", "print the memory, data movement and time of a run, without running it", {"all"}, ""},
      {"generate",
       "continue a text with a trained run, or with the model in a directory",
       {"memory", "threads", "json", "machine-profile"},
       "RUN|DIR"},
      {"chat",
       "talk with a trained run or the model in a directory, on standard input and output",
       {"memory", "threads", "json", "machine-profile"},
       "RUN|DIR"},
      {"eval",
       "the loss of trained runs and of models in directories on data, without training",
       {"memory", "threads", "json", "machine-profile"},
       "RUN|DIR..."},
      {"doctor",
       "examine this machine, and print what to improve",
       {"device", "nvme-path", "machine-profile", "json", "threads"},
       ""},
      {"report",
       "write the report.html of a run, or a page that compares several runs or shows the JSON of a bench",
       {"json"},
       "RUN..."},
      {"top", "watch runs in a terminal while they train", {}, "RUN..."},
      {"config", "print the effective configuration", {"all"}, ""},
      {"ckpt", "list, verify, copy, export or remove commits of a run", {"nvme-path", "json"}, "RUN"},
      {"launch", "start several ranks of train, or of another command, on this machine with mpirun", {"json"}, ""},
      {"train-tokenizer", "make a tokenizer.json from text", {"json"}, ""},
      {"tokenize", "write the tokens of text to files for training", {"json"}, ""},
      {"bench", "measure disks, memory, computing, and the parts of terrace", {"json"}, ""},
      {"help", "print the help of a command, or the list of presets", {}, "COMMAND|presets"},
      {"version", "print the version and what it was built with", {}, ""},
      {"completions", "print a script for a shell to complete commands and flags", {}, "bash|zsh|fish"},
      {"man", "print the manual page, or a page of the reference in Markdown", {}, "[flags|metrics|exit-codes]"},
  };
  return all;
}

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

void add_sampling(CLI::App& sub, GenerateOptions& out) {
  auto& sampling = out.sampling;
  add_number(sub, "--temperature", sampling.temperature, "temperature of sampling; 0: always take the most probable token");
  sub.add_option("--top-k", sampling.top_k, "sample from so many most probable tokens; 0: from all")->capture_default_str();
  add_number(sub, "--top-p", sampling.top_p, "the fewest of these with so much probability together; 1: all");
  add_number(sub, "--repetition-penalty", sampling.repetition_penalty,
             "makes tokens that the text has less probable: their logits are divided by it, negative ones "
             "multiplied; 1: no penalty");
  sub.add_option("--seed", sampling.seed, "seed of sampling")->capture_default_str();
  sub.add_option(
         "--stop-token", out.stop_token,
         "the token that ends the text; none: only the length does; auto: --document-separator of the run, and what the "
         "files beside the tokenizer name (eos_token, eos_token_id), or else <|endoftext|>")
      ->capture_default_str()
      ->type_name("TOKEN");
}

void add_tokenizer(CLI::App& sub, GenerateOptions& out) {
  sub.add_option("--tokenizer", out.tokenizer, "tokenizer of a run that was trained on token ids")->type_name("FILE");
}

void check_sampling(const GenerateOptions& g, std::int64_t max_tokens, const std::string& command) {
  const auto refuse_value = [&](const char* flag, double value, const char* accepted) {
    refuse(fmt::format("{}: {} is not accepted: {}", flag, value, accepted), command);
  };
  const auto& s = g.sampling;
  if (max_tokens < 1) refuse(fmt::format("--max-tokens: {} is not accepted: an integer of at least 1", max_tokens), command);
  if (!(s.temperature >= 0 && s.temperature <= 1000)) refuse_value("--temperature", s.temperature, "a number from 0 to 1000");
  if (s.top_k < 0) refuse(fmt::format("--top-k: {} is not accepted: an integer of at least 0", s.top_k), command);
  if (!(s.top_p > 0 && s.top_p <= 1)) refuse_value("--top-p", s.top_p, "a number above 0 and at most 1");
  if (!(s.repetition_penalty > 0 && s.repetition_penalty <= 1000))
    refuse_value("--repetition-penalty", s.repetition_penalty, "a number above 0 and at most 1000; 1 is no penalty");
  if (g.stop_token.empty()) refuse("--stop-token is empty: give a token, auto or none", command);
}

// The commands that read weights, and train nothing.
bool reads_weights(std::string_view command) { return command == "generate" || command == "chat" || command == "eval"; }

void add_command(CLI::App& app, const Command& command, CommandLine& out, Parsed& parsed) {
  auto* const sub = app.add_subcommand(std::string(command.name), std::string(command.help));
  sub->allow_extras();
  const bool all = std::ranges::find(command.takes, "all") != command.takes.end();
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
  if (command.name == "ckpt") {
    sub->add_option("arguments", out.positional,
                    "what to do, then the run directory; for copy and export also the new directory")
        ->type_name("list|inspect|verify|copy|export|rm RUN [NEW]");
    sub->add_flag(
        "--merge", out.merge,
        "export the whole model of a run with --lora-rank: the adapters merged into the weights, not the adapters alone");
    sub->add_option("--step", out.step, "the commit after this step, one that ckpt list shows, and not the last one")
        ->type_name("STEP");
  } else if (!command.positional.empty()) {
    sub->add_option("run", out.positional,
                    reads_weights(command.name) ? "the directory of a run, or of a model with config.json and weights"
                    : command.positional.starts_with("RUN") ? "the run directory"
                                                            : "which one")
        ->type_name(std::string(command.positional));
    if (reads_weights(command.name))
      sub->add_option("--adapter", out.generate.adapter, "adapters of the model in a directory, as PEFT writes them")
          ->type_name("DIR");
  }
  if (command.name == "top") {
    sub->add_flag("--once", out.once, "print one frame; so does an output that is not a terminal");
  }
  if (command.name == "generate") {
    sub->add_option("--prompt", out.generate.prompt, "text to continue");
    add_tokenizer(*sub, out.generate);
    sub->add_option("--max-tokens", out.generate.max_tokens,
                    "tokens (without --tokenizer, bytes) to generate; prompt and text together are at most --seq-len tokens")
        ->capture_default_str();
    add_sampling(*sub, out.generate);
  }
  if (command.name == "chat") {
    sub->add_option("--system", out.chat.system, "system message that begins the conversation");
    add_tokenizer(*sub, out.generate);
    sub->add_option("--max-tokens", out.chat.max_tokens, "tokens of an answer, at most")->capture_default_str();
    add_sampling(*sub, out.generate);
  }
  if (command.name == "eval") {
    auto& eval = out.eval;
    sub->add_option("--data", eval.data,
                    "files to evaluate on, each for itself; with weights, as in 7 web.bin 3 code.bin, those behind each number "
                    "together")
        ->type_name("PATH");
    const auto* const format = find_option("data-format");
    sub->add_option("--data-format", eval.data_format, "as of train")
        ->capture_default_str()
        ->check(CLI::IsMember(std::vector<std::string>(format->choices.begin(), format->choices.end())));
    sub->add_option("--seq-len", eval.seq_len,
                    fmt::format("tokens in a sequence; 0: as many as the run has, of a model in a directory at most {}",
                                EvalOptions::kMostPositions))
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 31));
    sub->add_option(
           "--batch-size", eval.batch_size,
           fmt::format("sequences that are computed together; 0: as many as have {} tokens, or fewer if they do not fit",
                       EvalOptions::kMostPositions))
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20));
    add_tokenizer(*sub, out.generate);
    sub->add_option("--sequences", eval.sequences, "read so many sequences of each source; 0: all")
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  }
  if (command.name == "plan") {
    sub->add_option("--search", out.plan.search,
                    "try all legal --dp, --pp, --tp, --tp-mode, --cp, --cp-mode and --zero for as many ranks and sequences a "
                    "step as the other flags give, and print so many of the fastest (default 5)")
        ->expected(0, 1)
        ->default_str("5")
        ->check([](const std::string& count) { return count.starts_with('-') ? "at least one plan must be shown" : ""; })
        ->type_name("[COUNT]");
    add_number(*sub, "--search-seconds", out.plan.search_seconds,
               "when --search ends; it plans the best by estimate first. 0: when all are planned, in full");
    sub->add_option("--search-plans", out.plan.search_plans, "how many --search plans, the best by estimate; 0: all")
        ->capture_default_str();
    sub->add_flag("--program", out.plan.program, "print the program of a steady step");
    sub->add_option("--trace", out.plan.trace, "write the simulated step as a trace file for Perfetto")->type_name("FILE");
    auto* const profile =
        sub->add_option("--cluster-profile", out.plan.cluster_profile,
                        fmt::format("plan for the machine or cluster that this file describes, or for one of {}",
                                    fmt::join(shipped_clusters(), ", ")));
    profile->type_name("FILE|NAME")->group("cluster");
    for (auto* const size :
         {sub->add_option("--nodes", out.plan.nodes, "number of nodes (default 1)"),
          sub->add_option("--gpus-per-node", out.plan.gpus_per_node, "ranks on each node; 0: one for each GPU")})
      size->needs(profile)->group("cluster");
    auto* const timeline =
        sub->add_option("--timeline", out.plan.timeline, "write a picture (SVG) of the simulated step of a pipeline");
    timeline->type_name("FILE");
    sub->add_option("--measured", out.plan.measured, "draw the last step of this run beside the simulated one, lane by lane")
        ->type_name("RUN")
        ->needs(timeline);
    sub->add_option("--write-schedule", out.plan.write_schedule, "write the schedule of a pipeline as text, for --schedule")
        ->type_name("FILE");
  }
  if (command.name == "doctor") sub->add_flag("--measure", out.measure, "measure this machine and save its profile");
}

void demand_files(const char* flag, const std::vector<fs::path>& files, const std::string& command) {
  for (const auto& file : files) {
    std::error_code error;
    const bool there = fs::exists(file, error);
    if (error)
      refuse(fmt::format("{}: \"{}\" cannot be reached: {}", flag, file.string(), describe_errno(error.value())), command);
    if (!there) refuse(fmt::format("{}: \"{}\" does not exist", flag, file.string()), command);
    if (fs::is_directory(file, error))
      refuse(fmt::format("{0}: \"{1}\" is a directory; give {0} the files in it", flag, file.string()), command);
  }
}

void add_commands(CLI::App& app, CommandLine& out, Parsed& parsed) {
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", version_text, "print the version and what it was built with, and exit");
  app.footer("Sizes: 512MiB, 16GB (decimal), auto, unlimited. Exit codes: " + brief_exit_codes() + ".");
  for (const auto& command : commands()) add_command(app, command, out, parsed);
}

void check_arguments(const CommandLine& line) {
  const auto& words = line.positional;
  if (line.command == "ckpt") {
    static constexpr std::array<std::string_view, 6> kActions{"list", "inspect", "verify", "copy", "export", "rm"};
    if (words.empty()) refuse("ckpt needs an action (list, inspect, verify, copy, export or rm) and a run directory", "ckpt");
    if (std::ranges::find(kActions, words[0]) == kActions.end()) {
      refuse(fmt::format("ckpt: unknown action \"{}\"{}", words[0], suggestion(words[0], kActions)), "ckpt");
    }
    if (words.size() < 2) refuse(fmt::format("ckpt {} needs a run directory", words[0]), "ckpt");
    const bool makes = words[0] == "copy" || words[0] == "export";
    const std::size_t most = makes ? 3 : 2;
    if (makes && words.size() < most)
      refuse(fmt::format("ckpt {} needs a second directory, for what it writes", words[0]), "ckpt");
    if (words.size() > most) refuse(fmt::format("unexpected argument \"{}\"", words[most]), "ckpt");
  }
  if (reads_weights(line.command) || line.command == "report") {
    const bool report = line.command == "report";
    if (words.empty())
      refuse(fmt::format("{} needs the directory of a run{}", line.command, report ? "" : ", or of a model"), line.command);
    const bool one = line.command == "generate" || line.command == "chat";
    if (one && words.size() > 1) refuse(fmt::format("unexpected argument \"{}\"", words[1]), line.command);
    std::error_code error;
    const bool bench =
        report && words.size() == 1 && fs::is_regular_file(words[0], error);  // a file written by `terrace bench --json`
    for (const auto& word : words)
      if (!bench && !fs::is_directory(word, error))
        refuse(fmt::format("{}: \"{}\" is not a directory", line.command, word), line.command);
  }
  if (line.command == "top" && words.empty()) refuse("top needs a run directory", line.command);
  if (line.command == "eval") {
    if (line.eval.data.empty()) refuse("eval needs --data, files to evaluate on", "eval");
    RunConfig of_data;
    of_data.data.files = line.eval.data;
    demand_files("--data", data_files(of_data), "eval");
  }
  if (line.command == "generate") check_sampling(line.generate, line.generate.max_tokens, line.command);
  if (line.command == "chat") check_sampling(line.generate, line.chat.max_tokens, line.command);
  if (line.command == "train") {
    if (line.config.data.files.empty()) refuse("train needs a corpus: --data FILE...", "train");
    demand_files("--data", data_files(line.config), "train");
    if (!line.config.data.eval_files.empty()) demand_files("--eval-data", data_files(of_evaluation(line.config)), "train");
  }
}

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
  if (reads_weights(line.command)) return directory;
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
  for (const auto& own : {describe_bench(), describe_tokenize(), describe_train_tokenizer(), describe_launch()})
    *std::ranges::find(program.commands, own.name, &CommandText::name) = own;
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
  if (line.answer.empty()) line.answer = parsed.preset == kListPresets ? preset_list() : answer_of(line);
  parsed.files_before_model = files_before_model(chosen(app));
  if (!line.answer.empty()) return line;
  for (const auto* const of_run : {"generate", "chat", "eval", "report", "top", "ckpt"})
    if (line.command == of_run) check_arguments(line);
  if (reads_weights(line.command)) {
    for (const auto& directory : line.positional) line.configs.push_back(resolve_to_read(line, parsed, directory));
    for (auto& config : line.configs) find_device(config, 1);
    line.config = line.configs.front();
    return line;
  }
  if (parsed.preset) line.preset = &preset_named(*parsed.preset);
  line.config = resolve(line, parsed);
  demand_model_of_preset(line);
  const bool of_training = line.command == "train" || line.command == "plan" || line.command == "config";
  if (const auto place = launched(); of_training || line.command == "doctor")
    find_device(line.config, place ? place->local_ranks : line.config.parallel.ranks());
  if (of_training) {
    if (line.config.data.format == DataFormat::automatic) line.config.data.format = found_format(line.config);
    validate(line.config);
    check_arguments(line);
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
    say(to,
        "error: no thread can be started: there are too many, or no memory is left for one\n"
        "  raise `ulimit -u` or the cgroup's pids.max, or lower --threads, --dp or --pp\n");
    return static_cast<int>(Exit::runtime);
  }
  const auto what = file ? fmt::format("{}\n  {}", describe(error), advice_on(*file)) : std::string(error.what());
  say(to, each_with_error(printable_lines(with_flags(what))));
  const auto* const known = dynamic_cast<const Error*>(&error);
  return static_cast<int>(exit_of(known ? known->kind() : ErrorKind::failed));
} catch (const std::bad_alloc&) {  // thrown by the error or its text: what follows needs no memory
  say(to,
      "error: no memory is left for the program itself\n"
      "  raise the limit (`ulimit -v`, the cgroup's memory.max), end other programs, or lower --host-memory and "
      "--device-memory\n");
  return static_cast<int>(Exit::runtime);
}

}  // namespace terrace::cli
