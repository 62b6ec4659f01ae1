// The command line of `terrace`: which command, on what, with which configuration.
//
// Threads: any.
// Errors:  parse() throws Error(Exit::usage), with a second line that says where to look. Help and version are no errors: they
//          come back as `answer`.
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

inline constexpr const char* kConfigFile = "config.toml";  // in every run directory

struct GenerateOptions {
  std::string prompt;
  std::int64_t max_tokens = 200;
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 40;   // 0: all tokens
  std::uint64_t seed = 1;    // of sampling
};

struct PlanOptions {
  bool program = false;         // print the steady step's program as text
  std::filesystem::path trace;  // the simulated step as trace JSON; empty: none
  // On a cluster that is not here (cluster.h); no profile: on this machine.
  std::filesystem::path cluster_profile;
  std::int64_t nodes = 1, gpus_per_node = 0;
  // Of a pipeline: a picture of the simulated step, its order as text; empty: none.
  std::filesystem::path timeline, write_schedule;
  std::filesystem::path measured;  // the run whose last step is drawn beside the simulated one; empty: none
};

struct CommandLine {
  std::string command;  // train, plan, generate, doctor, report, config, ckpt
  RunConfig config;
  std::vector<std::string> positional;  // RUN of generate and report; ACTION RUN of ckpt
  GenerateOptions generate;
  PlanOptions plan;
  bool measure = false;  // doctor: take the machine profile and save it
  std::string answer;    // not empty: print it and exit 0
};

CommandLine parse(int argc, const char* const* argv);

// Prints "error: …" and returns the process's exit code.
int report_error(const std::exception& error, std::FILE* to);

}  // namespace terrace::cli
