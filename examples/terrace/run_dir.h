// A run's directory: who may write into it, what it was told, and whether it is finished.
//
// Threads: one. Errors: Error(Exit::usage) when it holds something that must not be overwritten, or a run that differs.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include <terrace/examples/terrace/run_config.h>
#include <terrace/offload/chunk_store.h>

namespace terrace::cli {

struct RunDir {
  std::filesystem::path path;
  ChunkStore::Options store;             // where the run's chunks are, as it was when the run began
  bool resume = false;                   // something is committed: go on from there
  std::optional<nlohmann::json> result;  // of a run that has finished all steps asked for now
};

// Makes or opens config.out_dir as --resume says; writes config.toml and run.json when it is not finished.
RunDir open_run_dir(RunConfig& config);
// The directory of a run that exists (generate, report): its configuration and its store.
struct ExistingRun {
  RunConfig config;
  ChunkStore::Options store;
};
ExistingRun read_run_dir(const std::filesystem::path& path);

void write_result(const RunDir& dir, const nlohmann::json& result);
void write_json(const std::filesystem::path& file, const nlohmann::json& value);

}  // namespace terrace::cli
