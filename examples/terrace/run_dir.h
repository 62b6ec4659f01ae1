// The directory of a run: its lock, its settings, and whether it is finished.
//
// Owner:   the process that opened it, until it closes it or ends. A second run in the same directory is an error.
// Threads: one.
// Errors:  Error(Exit::usage) if the directory has something that must not be overwritten, or a run with other settings;
//          Error(Exit::corrupt) if its files are damaged or its store is missing. A file of another version is refused with
//          Error(Exit::usage).
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/terrace/run_config.h>
#include <terrace/offload/chunk_store.h>
#include <terrace/offload/extent_files.h>

namespace terrace::cli {

inline constexpr const char* kResultFile = "result.json";  // written when a run reaches --steps

struct RunDir {
  std::filesystem::path path;
  FileHandle lock;                 // on the directory itself, so that no lock file is left
  ChunkStore::Options store;       // where the chunks of the run are
  bool resume = false;             // there is a commit to continue from
  bool has_committed = false;      // the run has had a commit of all its ranks: a missing one is lost, and not of the future
  std::string computed_with = {};  // bits_group() of the run's last part; empty: not recorded, or a new run
  std::string run_id = {};         // of this start (own_store.h); store.run_ids are those until now
  // If the layout changes: the stores of all former ranks, which have the state now. `store` is a new one then.
  std::vector<ChunkStore::Options> reshard_from;
  // Where each rank has its store, as run.json names it, if ranks were given different paths.
  std::vector<std::vector<std::string>> rank_paths = {};
  std::vector<int> machines;                              // how many ranks are on each; empty: one rank, or not recorded
  nlohmann::json data_content = nlohmann::json::array();  // DataContent::record(); empty: not recorded
  std::optional<nlohmann::json> result;                   // of a run that has already finished all steps of the configuration
};

// The directory of the run that --resume goes on with; empty if there is none.
std::filesystem::path run_resumed(const RunConfig& config);
// Those that this run began with. Nothing: there is none, or its file cannot be read, which is said where the run is opened.
std::optional<RunConfig> settings_of_resumed(const RunConfig& config);
// Error(Exit::usage) if the directory that --resume names has no run.
void demand_run_to_resume(const std::string& dir);
// Whether a part of the data is only evaluated on; --eval-batches 0 holds nothing out. A directory with run.json keeps what it
// recorded, even if the run never committed: its data are opened before its stores are looked at. Error(Exit::usage) if it held
// nothing out and is now to evaluate.
bool holds_out(const RunConfig& config);
// Creates or opens config.out_dir as --resume says, and locks it. It changes no file in it.
RunDir open_run_dir(RunConfig& config);
// Locks a run's directory. A second run in it is an error, which advises to give `instead`.
FileHandle lock_directory(const std::filesystem::path& dir, std::string_view instead = "another --out-dir");
// For a rank other than the first: where its part of the state is. The first rank holds the lock of the directory.
RunDir rank_dir(const RunConfig& config, int rank);
// Whether the machine computes other bits than the one that computed the run until now; warns if so.
bool has_other_bits(const RunDir& dir, const RunConfig& config);
void warn_of_other_bits(const RunDir& dir, const RunConfig& config);
// The command that goes on with a run after a stop, without further flags: it takes the run's own settings.
std::string command_to_resume(const std::filesystem::path& path, int ranks);
// Writes config.toml, run.json and the tokenizer, and removes an earlier result. Called after all checks.
void begin_run(const RunDir& dir, const RunConfig& config);
// Called after the first commit of this start: from now on, a store without a commit is damage. The stores still have the
// commit that the run resumed from, with the id `resumed`, and no older ones.
void record_first_commit(const RunDir& dir, const std::optional<std::string>& resumed);
// Removes this machine's stores of former layouts, and of ranks beyond the `ranks` of now, which a start that never committed
// left. Any rank calls it, after begin_run().
void remove_former_stores(const RunDir& dir, std::size_t ranks);
// For readers: the stores of all ranks of the run in a directory, in rank order; some may be on other machines, or lost.
// `given`: an --nvme-path, where stores are looked for that are not where the run has left them.
std::vector<ChunkStore::Options> stores_of_run(const std::filesystem::path& path,
                                               std::span<const std::filesystem::path> given = {});
// That of the first rank alone.
ChunkStore::Options first_store_of_run(const std::filesystem::path& path);
// The folders of all stores that the run has on this machine, also those of lost ranks and former layouts. Those that another
// run has now stay, with a warning.
std::vector<std::filesystem::path> store_folders_of_run(const std::filesystem::path& path,
                                                        std::span<const std::filesystem::path> given = {});
// The paths of a rank's store for run.json: "." for the run directory itself.
std::vector<std::string> recorded_paths(const RunDir& dir);
std::string store_name_of_rank(const std::string& name, std::size_t rank);
// For a command that takes the settings from config.toml, which has no checksum: they must be those of run.json.
void demand_settings_of_run(const std::filesystem::path& path, const RunConfig& config);
// The files of the tokenizer that the run keeps which are not as they were written, one a line; empty: none.
std::string damaged_tokenizer(const std::filesystem::path& path);
void demand_intact_tokenizer(const std::filesystem::path& path);  // Error(Exit::corrupt) otherwise
// Copies the settings, tokenizer and metrics of the run `from` to the folder `to`, which has its own store, with commits of
// `run_id`; run.json last.
void copy_run_files(const std::filesystem::path& from, const std::filesystem::path& to, const std::string& run_id);
// After its store is removed, the directory has no run any more; its metrics and report stay.
void forget_run(const std::filesystem::path& path);

// The algorithms that the device's math chose and that change the bits (Math::algorithms()), for a resumed run. An empty text
// is not written.
void record_algorithms(const RunDir& dir, const std::string& chosen);
std::string recorded_algorithms(const RunDir& dir);

// Writes a file of the run directory and syncs it to disk.
void record(const RunDir& dir, const char* name, const std::string& text);
void write_result(const RunDir& dir, const nlohmann::json& result);
void write_json(const std::filesystem::path& file, const nlohmann::json& value);

}  // namespace terrace::cli
