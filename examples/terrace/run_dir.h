// A run's directory: who may write into it, what it was told, and whether it is finished.
//
// Owner:   the process that opened it, until it closes it or dies: a second run in the same directory is refused.
// Threads: one.
// Errors:  Error(Exit::usage) when it holds something that must not be overwritten, or a run that differs;
//          Error(Exit::corrupt) when its files are not what a run writes, or its store is gone.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include <terrace/examples/terrace/run_config.h>
#include <terrace/offload/chunk_store.h>
#include <terrace/offload/extent_files.h>

namespace terrace::cli {

inline constexpr const char* kResultFile = "result.json";  // of a run, or a part of one, that came to its end

struct RunDir {
  std::filesystem::path path;
  FileHandle lock;            // held on the directory itself, so that nothing stays behind
  ChunkStore::Options store;  // where the run's chunks are, as it was when the run began
  bool resume = false;        // something is committed: go on from there
  // Where the run's state is now, of all its ranks, when it is laid out for others than this run's: `store` is a new one.
  std::vector<ChunkStore::Options> reshard_from;
  std::optional<nlohmann::json> result;  // of a run that has finished all steps asked for now
};

// Makes or opens config.out_dir as --resume says, and locks it. What is in it stays as it is.
RunDir open_run_dir(RunConfig& config);
// Of a rank that is not the first: where its own part of the state is. The first rank holds the directory.
RunDir rank_dir(const RunConfig& config, int rank);
// From here on it is this run's: config.toml and run.json are written, an earlier result is removed. Called when nothing can be
// refused any more.
void begin_run(const RunDir& dir, const RunConfig& config);
// Those that it had before it was laid out anew, on this machine. Behind begin_run(), of any rank.
void remove_former_stores(const RunDir& dir);
// Where the run in a directory keeps its chunks (generate, ckpt).
ChunkStore::Options store_of_run(const std::filesystem::path& path);
// The same of every rank that has one on this machine, the first rank's first.
std::vector<ChunkStore::Options> stores_of_run(const std::filesystem::path& path);
// Those of so many ranks, the first of which has this one; they need not be on this machine.
std::vector<ChunkStore::Options> stores_of_ranks(const ChunkStore::Options& first, std::size_t ranks);
std::string store_name_of_rank(const std::string& name, std::size_t rank);
// What makes the folder `to`, with a store of its own in it, a run like `from`: its settings and its metrics.
void copy_run_files(const std::filesystem::path& from, const std::filesystem::path& to);
// The run is none any more, once its store is removed; its metrics and report stay.
void forget_run(const std::filesystem::path& path);

// What the device's math chose and is part of the bits (Math::algorithms()), for whoever goes on with the run; nothing is kept
// of nothing.
void record_algorithms(const RunDir& dir, const std::string& chosen);
std::string recorded_algorithms(const RunDir& dir);

void write_result(const RunDir& dir, const nlohmann::json& result);
void write_json(const std::filesystem::path& file, const nlohmann::json& value);

}  // namespace terrace::cli
