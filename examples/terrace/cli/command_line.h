// The command line of `terrace`: the command, its arguments and the configuration.
//
// Threads: any.
// Errors:  parse() throws Error(ErrorKind::refused), whose second line says where to look. The texts of --help and --version
//          are returned as `answer`.
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/examples/lm/generate/sampling.h>
#include <terrace/examples/terrace/cli/command_text.h>
#include <terrace/examples/terrace/config/presets.h>
#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

inline constexpr const char* kConfigFile = "config.toml";  // in every run directory

struct GenerateOptions {
  std::string prompt;
  std::filesystem::path tokenizer;  // for a run that was trained on token ids
  std::filesystem::path adapter;    // of PEFT, for a model's directory; empty: none. Also for chat and eval
  std::int64_t max_tokens = 200;
  lm::Sampling sampling;
  std::string stop_token = "auto";  // passed to RunText
};

struct EvalOptions {
  std::vector<std::filesystem::path> data;
  std::string data_format = "auto";  // as for train
  std::int64_t seq_len = 0;          // 0: the run's, or the model's up to kMostPositions
  std::int64_t batch_size = 0;       // sequences at a time; 0: as many as fit into kMostPositions
  std::int64_t sequences = 0;        // of each source; 0: all
  static constexpr std::int64_t kMostPositions = 2048;
};

struct ChatOptions {
  std::string system;              // the first message; empty: none
  std::int64_t max_tokens = 1000;  // of an answer
};

struct PlanOptions {
  bool program = false;         // print the program of a steady step as text
  std::filesystem::path trace;  // write the simulated step as trace JSON; empty: do not
  // Plan for this cluster (cluster.h); empty: for this machine.
  std::filesystem::path cluster_profile;
  std::int64_t nodes = 1, gpus_per_node = 0;
  // For a pipeline: write a picture of the simulated step, or the schedule as text; empty: do not.
  std::filesystem::path timeline, write_schedule;
  std::int64_t search = -1;        // how many of the fastest products of degrees to print; −1: no search
  double search_seconds = 52;      // time limit of --search, on the clock; 0: none
  std::int64_t search_plans = 0;   // the most plans that --search tries; 0: all
  std::filesystem::path measured;  // draw the last step of this run beside the simulated one; empty: do not
};

struct CommandLine {
  std::string command;  // train, plan, generate, chat, eval, doctor, report, top, config, ckpt
  RunConfig config;
  std::vector<std::string> positional;  // generate, chat: RUN or DIR; eval: several; report, top: RUN…; ckpt: ACTION RUN
  GenerateOptions generate;
  EvalOptions eval;
  std::vector<RunConfig> configs;  // eval: one for each directory; `config` is the first
  ChatOptions chat;                // used together with the sampling of `generate`
  PlanOptions plan;
  bool merge = false;              // ckpt export: merges a run's adapters into its weights
  bool once = false;               // top: prints one frame and ends
  std::int64_t step = -1;          // ckpt: the commit after this step; −1: the last one
  bool measure = false;            // doctor: measure the machine profile and save it
  std::string answer;              // if not empty: print it and exit with 0
  const Preset* preset = nullptr;  // train, plan, config: the one that --preset names
};

CommandLine parse(int argc, const char* const* argv);

// Describes all commands, also those with a command line of their own (commands.h).
CommandText describe_program();

// Prints "error: …" and returns the process's exit code.
int report_error(const std::exception& error, std::FILE* to);

}  // namespace terrace::cli
