// The directory of a run: its lock, its settings, and whether it is finished.
//
// Owner:   the process that opened it, until it closes it or ends. A second run in the same directory is an error.
// Threads: one.
// Errors:  Error(ErrorKind::refused) if the directory has something that must not be overwritten, or a run with other settings;
//          Error(ErrorKind::corrupt) if its files are damaged or its store is missing. A file of another version is refused
//          with Error(ErrorKind::refused).
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/offload/store/chunk_store.h>
#include <terrace/offload/store/extent_files.h>

namespace terrace::cli {

inline constexpr const char* kResultFile = "result.json";  // written when a run reaches --steps

struct RunDir {
  std::filesystem::path path;
  files::FileHandle lock;          // on the directory itself, so that no lock file is left
  ChunkStore::Options store;       // where the chunks of the run are
  bool resume = false;             // there is a commit to continue from
  bool has_committed = false;      // all ranks have committed before: a missing commit is lost, not still to come
  std::string computed_with = {};  // bits_group() of the run's last part; empty: not recorded, or a new run
  std::string run_id = {};         // of this start (own_store.h); store.run_ids: of all starts until now
  // If the layout changes: the stores of all former ranks, which hold the state. `store` is then a new one.
  std::vector<ChunkStore::Options> reshard_from;
  // Where each rank has its store, as run.json writes it, if the ranks were given different paths.
  std::vector<std::vector<std::string>> rank_paths = {};
  std::vector<int> machines;                              // how many ranks are on each; empty: one rank, or not recorded
  nlohmann::json data_content = nlohmann::json::array();  // DataContent::record(); empty: not recorded
  std::optional<nlohmann::json> result;                   // of a run that has already finished all steps of the configuration
};

// The directory of the run that --resume continues; empty if there is none.
std::filesystem::path run_resumed(const RunConfig& config);
// The settings that this run began with. Empty if there is no such run or its file cannot be read; opening the run reports the
// latter.
std::optional<RunConfig> settings_of_resumed(const RunConfig& config);
// Throws Error(ErrorKind::refused) if the directory that --resume names has no run.
void demand_run_to_resume(const std::string& dir);
// Whether a part of the data is held out for evaluations; --eval-batches 0 and --eval-data hold nothing out. A directory with
// run.json keeps what it recorded, even if the run never committed, because its data are opened before its stores are looked
// at. Error(ErrorKind::refused) if the run held nothing out and should now evaluate.
bool holds_out(const RunConfig& config);
// Creates or opens config.out_dir as --resume says, and locks it. Changes no file in it.
RunDir open_run_dir(RunConfig& config);
// Locks a run's directory. A second run in it is an error whose message advises to give `instead`.
files::FileHandle lock_directory(const std::filesystem::path& dir, std::string_view instead = "another --out-dir");
// For a rank other than the first: finds its part of the state. The first rank holds the lock of the directory.
RunDir rank_dir(const RunConfig& config, int rank);
// Whether this machine computes other bits than the one that computed the run until now. The second function only warns of it.
bool has_other_bits(const RunDir& dir, const RunConfig& config);
void warn_of_other_bits(const RunDir& dir, const RunConfig& config);
// The command that continues a stopped run. It needs no further flags, because a resumed run takes its own settings.
std::string command_to_resume(const std::filesystem::path& path, int ranks);
// Writes config.toml, run.json and the tokenizer, and removes an earlier result. Called after all checks.
void begin_run(const RunDir& dir, const RunConfig& config);
// Called after the first commit of this start: from now on, a store without a commit is damaged. The stores still have the
// commit that the run resumed from, with the id `resumed`, but no older ones.
void record_first_commit(const RunDir& dir, const std::optional<std::string>& resumed);
// Removes this machine's stores of former layouts, and stores of ranks from `ranks` on, which a start that never committed may
// have left. Any rank may call it, after begin_run().
void remove_former_stores(const RunDir& dir, std::size_t ranks);
// For readers: the stores of all ranks of the run in a directory, in rank order; some may be on other machines, or lost.
// `given`: an --nvme-path in which to look for stores that are not where the run left them.
std::vector<ChunkStore::Options> stores_of_run(const std::filesystem::path& path,
                                               std::span<const std::filesystem::path> given = {});
// Only the store of the first rank.
ChunkStore::Options first_store_of_run(const std::filesystem::path& path);
// The folders of all stores that the run has on this machine, also those of lost ranks and former layouts. A store that belongs
// to another run now is left out, with a warning.
std::vector<std::filesystem::path> store_folders_of_run(const std::filesystem::path& path,
                                                        std::span<const std::filesystem::path> given = {});
// The paths of a rank's store for run.json: "." for the run directory itself.
std::vector<std::string> recorded_paths(const RunDir& dir);
std::string store_name_of_rank(const std::string& name, std::size_t rank);
// For a command that takes its settings from config.toml, which has no checksum: throws if they are not those of run.json.
void demand_settings_of_run(const std::filesystem::path& path, const RunConfig& config);
// The files of the run's copy of the tokenizer that are not as they were written, one a line; empty: none.
std::string damaged_tokenizer(const std::filesystem::path& path);
void demand_intact_tokenizer(const std::filesystem::path& path);  // Error(ErrorKind::corrupt) otherwise
// Copies the settings, tokenizer and metrics of the run `from` to the folder `to`, whose own store has commits of `run_id`.
// Writes run.json last.
void copy_run_files(const std::filesystem::path& from, const std::filesystem::path& to, const std::string& run_id);
// Called after the store is removed: removes what makes the directory a run. Its metrics and report stay.
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
