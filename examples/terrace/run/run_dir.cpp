#include <terrace/examples/terrace/run/run_dir.h>

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include <terrace/core/base/file_lock.h>
#include <terrace/core/base/folders.h>
#include <terrace/core/base/notice.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/terrace/base/environment.h>
#include <terrace/examples/terrace/base/launched.h>
#include <terrace/examples/terrace/base/sealed_json.h>
#include <terrace/examples/terrace/base/shell_word.h>
#include <terrace/examples/terrace/base/unfinished_copy.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>
#include <terrace/examples/terrace/metrics/metrics.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/run/own_store.h>
#include <terrace/offload/store/store_folder.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
constexpr const char* kRunFile = "run.json";
constexpr const char* kHasCommitted = "has_committed";
constexpr const char* kComputedWith = "computed_with";
constexpr const char* kMachines = "machines";
constexpr const char* kUnitsApart = "units_apart";
constexpr const char* kRunId = "run_id";
constexpr const char* kFormerRunIds = "former_run_ids";
constexpr const char* kRankPaths = "rank_store_paths";
constexpr const char* kHoldsOut = "holds_out";
constexpr const char* kDataContent = "data_content";
constexpr const char* kTokenizer = "tokenizer";  // key of the checksums of the copy's files
constexpr const char* kRunFileCopy = "run.copy.json";
constexpr const char* kAlgorithmsFile = "algorithms.txt";

std::string read_text(const fs::path& file) {
  try {
    return read_text_file(file);
  } catch (const Error& error) {
    throw Error(fmt::format("{} cannot be read: {}\n  restore the file, or start a new run in another --out-dir", file.string(),
                            error.what()),
                error);
  }
}

// Syncs to disk, because without these files a commit is of no use after a power loss.
void write_text(const fs::path& file, const std::string& text) try {
  replace_text_file(file, text, files::Durable::yes);
} catch (const Error& error) {
  throw Error(
      fmt::format("{} cannot be written: {}\n  make room or change the permissions there, then continue with --resume auto",
                  file.string(), error.what()));
}

// Syncs the names of a new run directory and of the folders that were made for it.
void sync_names(const fs::path& dir) try { files::sync_with_folders_above(dir); } catch (const Error& error) {
  throw Error(fmt::format("{}\n  check the disk, then continue with --resume auto", error.what()));
}

[[noreturn]] void refuse_file(const fs::path& file, const std::string& why) {
  // The result can be rebuilt: a resumed run writes it again.
  const char* const mend = file.filename() == kResultFile
                               ? "remove it, then continue with --resume auto"
                               : "restore the file, or start a new run in another --out-dir; after an edit by hand, remove its "
                                 "member xxh3";
  throw Error(fmt::format("{} is damaged: {}\n  {}", file.string(), why, mend), ErrorKind::corrupt);
}

// Returns what `take` reads from the JSON of a run's file.
template <class Take>
auto read_json(const fs::path& file, const Take& take) {
  const auto text = read_text(file);
  try {
    return take(parse_sealed(text));
  } catch (const nlohmann::json::exception&) {
    refuse_file(file, "a setting is missing, or of another type");
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::refused) throw base::Refused(fmt::format("{}: {}", file.string(), error.what()));
    refuse_file(file, error.what());
  }
}

// A command may read a file several times, and so does each of its ranks.
void warn_once(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  if (said.insert(text).second) base::warn(text);
}

// A run without its run.json is lost, so there is a copy. The copy is read if the file is damaged or cannot be read.
template <class Take>
auto read_run_json(const fs::path& dir, const Take& take) {
  const auto file = dir / kRunFile, copy = dir / kRunFileCopy;
  try {
    return read_json(file, take);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::refused || !fs::exists(copy)) throw;
    auto run = [&] {
      try {
        return read_json(copy, take);
      } catch (const Error&) {
        throw Error(error);  // this error names the file that a user knows
      }
    }();
    warn_once(fmt::format("{} {}, so its copy {} is used: check the disk", file.string(),
                          error.kind() == ErrorKind::corrupt ? "is damaged" : "cannot be read", kRunFileCopy));
    return run;
  }
}

void write_run_json(const fs::path& dir, const nlohmann::json& run) {
  for (const auto* const name : {kRunFile, kRunFileCopy}) write_json(dir / name, run);
}

// An edit by hand may have given a setting another type than this program writes.
void demand_types_of(const nlohmann::json& usual, const nlohmann::json& found) {
  const auto demand = [](bool good, const std::string& key) {
    if (!good) throw Error(fmt::format("the setting {} is of another type", base::printable(key)));
  };
  for (const auto& [key, value] : usual.items()) {
    const auto& other = found.at(key);
    if (key != "data") demand(value.is_number() ? other.is_number() : value.type() == other.type(), key);
  }
  demand(found.at("data").is_array(), "data");
  for (const auto& file : found.at("data"))
    demand(file.is_object() && file.at("name").is_string() && file.at("bytes").is_number_unsigned() &&
               (!file.contains("weight") || (file.at("weight").is_number_unsigned() && file.at("source").is_string())),
           "data");
}

std::uint64_t count_in(const nlohmann::json& value, std::uint64_t most, const char* what) {
  if (!value.is_number_integer() || value < 1 || value > most)
    throw Error(fmt::format("its number of {} is not possible", what));
  return value.get<std::uint64_t>();
}

struct RunFile {
  nlohmann::json fingerprint;
  ChunkStore::Options store;  // of rank 0
  std::vector<std::vector<fs::path>> rank_paths = {};
  bool has_committed = false;
  std::string computed_with = {};
  std::vector<int> machines;                    // not recorded by older versions
  bool units_apart = false;                     // false: older versions had one run of chunks for each layer
  nlohmann::json data_content;                  // not recorded by older versions
  std::optional<TokenizerChecksums> tokenizer;  // none: not recorded by older versions

  [[nodiscard]] std::size_t ranks() const {
    return fingerprint.at("dp").get<std::size_t>() * fingerprint.at("pp").get<std::size_t>() *
           fingerprint.at("tp").get<std::size_t>() * fingerprint.at("cp").get<std::size_t>() *
           fingerprint.at("ep").get<std::size_t>();
  }
  [[nodiscard]] ChunkStore::Options store_of(std::size_t rank, std::span<const fs::path> given) const {
    auto one = store;
    one.io = io_of_environment();
    one.name = store_name_of_rank(store.name, rank);
    if (rank < rank_paths.size()) one.paths = rank_paths[rank];
    return where_it_is(std::move(one), given);
  }
  [[nodiscard]] std::vector<ChunkStore::Options> stores(std::span<const fs::path> given) const {
    std::vector<ChunkStore::Options> all;
    for (std::size_t rank = 0; rank < ranks(); ++rank) all.push_back(store_of(rank, given));
    return all;
  }
};
RunFile read_run_file(const fs::path& dir) {
  return read_run_json(dir, [&](const nlohmann::json& j) {
    RunFile read{.fingerprint = j.at("fingerprint"),
                 .store = {},
                 .has_committed = j.value(kHasCommitted, false),
                 .computed_with = j.value(kComputedWith, std::string()),
                 .machines = j.value(kMachines, std::vector<int>()),
                 .units_apart = j.value(kUnitsApart, false),
                 .data_content = j.value(kDataContent, nlohmann::json::array()),
                 .tokenizer = {}};
    for (const auto& file : read.data_content)
      for (const auto* const key : {"state", "sample", "checksum"}) static_cast<void>(file.value(key, std::string()));
    if (j.contains(kTokenizer)) read.tokenizer = j.at(kTokenizer).get<TokenizerChecksums>();
    // Options that did not exist when the run began get their defaults.
    RunConfig usual;
    usual.parallel.dp = 1;
    const auto defaults = fingerprint(usual);
    for (const auto& [key, value] : defaults.items())
      if (key != "data" && !read.fingerprint.contains(key)) read.fingerprint[key] = value;
    if (auto& window = read.fingerprint["window"]; window.is_number_integer()) window = window.dump();  // of an older version
    for (const auto& [key, value] : read.fingerprint.items()) value = as_written_now(key, value);
    read.store.name = j.at("store_name").get<std::string>();
    demand_types_of(defaults, read.fingerprint);
    if (j.contains("generations"))
      read.store.generations = static_cast<std::uint32_t>(count_in(j.at("generations"), 2, "generations"));
    // Older versions had no ids: their commits have the empty id.
    read.store.run_ids = j.value(kFormerRunIds, std::vector<std::string>());
    read.store.run_ids.insert(read.store.run_ids.begin(), j.value(kRunId, std::string()));
    // A store inside the run directory moves with it.
    const auto paths_in = [&](const nlohmann::json& recorded) {
      std::vector<fs::path> paths;
      for (const auto& path : recorded) paths.push_back((fs::absolute(dir) / path.get<std::string>()).lexically_normal());
      if (paths.empty()) throw Error("it has no path of a store");
      return paths;
    };
    read.store.paths = paths_in(j.at("store_paths"));
    if (j.contains(kRankPaths))
      for (const auto& paths : j.at(kRankPaths)) read.rank_paths.push_back(paths_in(paths));
    constexpr std::uint64_t kMostRanks = 1 << 20;
    count_in(read.fingerprint.at("dp"), kMostRanks, "ranks");
    count_in(read.fingerprint.at("pp"), kMostRanks, "ranks");
    count_in(read.fingerprint.at("tp"), kMostRanks, "ranks");
    count_in(read.fingerprint.at("cp"), kMostRanks, "ranks");
    count_in(read.fingerprint.at("ep"), kMostRanks, "ranks");
    count_in(read.ranks(), kMostRanks, "ranks");
    return read;
  });
}

// Takes the layout out of the fingerprint: which rank holds and computes what. The layout may change when a run is resumed, but
// not what a step computes, so the micro-batches of all ranks are counted together.
nlohmann::json take_layout(nlohmann::json& fingerprint) {
  nlohmann::json layout;
  for (const auto* const key :
       {"dp", "zero", "shard-group", "pp", "schedule", "virtual-stages", "tp", "tp-mode", "tp-depth", "sp", "tp-overlap", "cp",
        "cp-mode", "cp-ring", "ep", "vocab-tiles", "mlp-tiles", "mlp-row-tiles", "attention-tiles"}) {
    layout[key] = fingerprint.at(key);
    fingerprint.erase(key);
  }
  fingerprint["micro-batches a step"] = layout["dp"].get<std::int64_t>() * layout["ep"].get<std::int64_t>() *
                                        fingerprint.at("grad-accumulation").get<std::int64_t>();
  fingerprint.erase("grad-accumulation");
  // With an asynchronous schedule, the layout decides which weight versions a step computes with.
  if (const auto name = layout["schedule"].get<std::string>(); layout["pp"] != 1 && name.starts_with("pipedream")) {
    auto& schedule = fingerprint["asynchronous schedule"];
    schedule = fmt::format("{} on {} ranks", name, layout["pp"].get<std::int64_t>());
    // The weight versions of pipedream depend on the micro-batch number of a data rank, those of pipedream-2bw on the update.
    if (name == "pipedream" && layout["dp"] != 1)
      schedule = fmt::format("{} for each of {} data ranks", schedule.get<std::string>(), layout["dp"].get<std::int64_t>());
  } else {
    fingerprint.erase("drain-interval");
  }
  if (layout["pp"] == 1) {
    layout.erase("schedule");
    layout.erase("virtual-stages");
  }
  if (layout["cp"] == 1) {
    layout.erase("cp-mode");
    layout.erase("cp-ring");
  }
  if (layout["dp"] == 1) {
    layout.erase("zero");
    layout.erase("shard-group");
  }
  return layout;
}

// "store", "store-layout2", "store-layout3": a run with a new layout gets new stores, and keeps the old ones until the new ones
// are committed.
constexpr std::string_view kLayoutSuffix = "-layout", kRankSuffix = "-rank";
struct LaidOut {
  std::string base;
  std::uint64_t number = 1;

  static LaidOut of(const std::string& name) {
    const auto at = name.rfind(kLayoutSuffix);
    if (at == std::string::npos) return {name.substr(0, name.rfind("-rank")), 1};
    return {name.substr(0, at), std::strtoull(name.c_str() + at + kLayoutSuffix.size(), nullptr, 10)};
  }
  [[nodiscard]] std::string name() const { return number == 1 ? base : fmt::format("{}{}{}", base, kLayoutSuffix, number); }
};

// Removes `suffix` and the number after it from the front of `name`, if they are there.
void take_numbered(std::string_view& name, std::string_view suffix) {
  if (!name.starts_with(suffix)) return;
  const auto digits = std::min(name.find_first_not_of("0123456789", suffix.size()), name.size());
  if (digits > suffix.size()) name.remove_prefix(digits);
}

// "store", "store-rank3"
bool is_rank_of(std::string_view layout, std::string_view name) {
  if (!name.starts_with(layout)) return false;
  name.remove_prefix(layout.size());
  take_numbered(name, kRankSuffix);
  return name.empty();
}

// Also "store-layout2", "store-layout2-rank3"
bool is_store_of(std::string_view base, std::string_view name) {
  if (!name.starts_with(base)) return false;
  auto rest = name.substr(base.size());
  take_numbered(rest, kLayoutSuffix);
  return is_rank_of(name.substr(0, name.size() - rest.size()), name);
}

// The folders of stores in these paths whose names `wanted` accepts, except those of another run. Only the first path of a
// store tells whose it is.
std::vector<fs::path> own_folders(const std::set<fs::path>& paths, const std::vector<std::string>& run_ids,
                                  const std::function<bool(const std::string&)>& wanted) {
  std::vector<fs::path> folders;
  std::set<std::string> others;
  for (const auto& path : paths) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(path, error)) {
      const auto name = entry.path().filename().string();
      if (!wanted(name)) continue;
      folders.push_back(entry.path());
      if (ChunkStore::commit_of_another({.paths = {path}, .name = name, .run_ids = run_ids})) others.insert(name);
    }
  }
  for (const auto& name : others) base::warn(fmt::format("the store {} belongs to another run now, and stays", name));
  std::erase_if(folders, [&](const fs::path& folder) { return others.contains(folder.filename().string()); });
  return folders;
}

[[noreturn]] void refuse_unfinished_copy(const fs::path& path) {
  throw base::Refused(fmt::format(
      "{} is an unfinished copy of a run\n  repeat the command terrace ckpt copy, or remove the folder", path.string()));
}

void demand_run(const fs::path& path) {
  if (is_unfinished_copy(path)) refuse_unfinished_copy(path);
  if (!fs::exists(path / kRunFile))
    throw base::Refused(fmt::format("{} has no run\n  give the directory of a run, its --out-dir", path.string()));
}

// A line for each file; empty: none, or an older version wrote no checksums.
std::string damaged_tokenizer(const fs::path& path, const RunFile& run) {
  return run.tokenizer ? damage_of_tokenizer(tokenizer_folder(path), *run.tokenizer) : std::string();
}

// `resumed`: the run that continues, which copies the tokenizer again if its flags name one; null: the run is only read.
void demand_tokenizer(const fs::path& path, const RunFile& run, const RunConfig* resumed) {
  const auto damage = damaged_tokenizer(path, run);
  if (damage.empty()) return;
  const auto what =
      fmt::format("the tokenizer that the run in {} keeps is not as it was written:\n  {}", path.string(), damage);
  if (!resumed || given_tokenizer(path, *resumed).empty())
    throw Error(what + "\n  bring the files back; a run that goes on with --resume auto and its --tokenizer copies them again",
                ErrorKind::corrupt);
  base::warn(what + "\n  check the disk; the files are copied again when the run goes on");
}

// Copies the tokenizer that the flags name and returns its checksums for run.json. While one tokenizer replaces another,
// run.json has no checksums, so that a kill does not leave one that looks damaged.
TokenizerChecksums keep_tokenizer(const fs::path& path, const RunConfig& config) {
  std::optional<TokenizerChecksums> known;
  if (fs::exists(path / kRunFile)) known = read_run_file(path).tokenizer;
  const auto files = given_tokenizer(path, config);
  if (files.empty()) return known ? *known : checksums_of(lm::read_tokenizer_files(tokenizer_folder(path)));
  const auto checksums = checksums_of(files);
  if (known && *known != checksums) {
    auto run = read_run_json(path, [](const nlohmann::json& j) { return j; });
    run.erase(kTokenizer);
    write_run_json(path, run);
  }
  lm::write_tokenizer_files(tokenizer_folder(path), files);
  return checksums;
}

// Sets the stores of the run, or new ones if the layout changes.
void set_stores(RunDir& dir, const RunFile& run, const RunConfig& config, std::size_t rank) {
  // A rank that the run did not have takes its own path if each rank has one, and otherwise that of the first rank.
  const bool is_new = rank >= run.ranks();
  dir.store.paths = run.store_of(is_new ? 0 : rank, config.memory.nvme_path).paths;
  if (is_new && !run.rank_paths.empty() && !config.memory.nvme_path.empty()) dir.store.paths = config.memory.nvme_path;
  dir.store.name = store_name_of_rank(run.store.name, rank);
  dir.store.run_ids = run.store.run_ids;
  auto then = run.fingerprint, now = fingerprint(config);
  const auto layout = take_layout(then);
  const bool same = layout == take_layout(now);
  if (same && run.units_apart == units_apart(config)) return;
  dir.reshard_from = run.stores(config.memory.nvme_path);
  auto next = LaidOut::of(run.store.name);
  ++next.number;
  dir.store.name = store_name_of_rank(next.name(), rank);
}

// If each rank has its own weights, the layout must not change.
void demand_layout(const RunDir& dir, const RunFile& run, const RunConfig& config) {
  if (dir.reshard_from.empty() || config.parallel.sync_interval == 1) return;
  auto then = run.fingerprint, now = fingerprint(config);
  const auto layout = take_layout(then);
  if (layout == take_layout(now))
    throw base::Refused(
        fmt::format("the run in {} was begun by an older version, which laid its chunks out otherwise, and with "
                    "--sync-interval {} each rank has its own weights, which cannot be laid out anew\n  continue with "
                    "the version that began it",
                    dir.path.string(), config.parallel.sync_interval));
  throw base::Refused(
      fmt::format("--sync-interval {}: each rank of the run in {} has its own weights and moments, so the number of ranks "
                  "cannot change\n  continue with --dp {}",
                  config.parallel.sync_interval, dir.path.string(), layout.at("dp").get<std::int64_t>()));
}

// A directory without run.json begins a new run. A commit under the names of its stores then belongs to another run: one that
// was moved away, that lost its run.json, or whose directory has the same path on another machine.
void demand_no_commits(const RunDir& dir, const RunConfig& config) {
  const auto& path = dir.store.paths.front();
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    auto store = dir.store;
    store.name = entry.path().filename().string();
    if (!is_store_of(dir.store.name, store.name) || !ChunkStore::had_commit(store)) continue;
    throw Error(
        fmt::format(
            "{} has files of a commit, but the {} of that run is missing in {}: the run was moved, lost the file, or is "
            "another machine's\n  give another --out-dir; or let terrace ckpt copy give the moved run a store of its "
            "own, and remove it with terrace ckpt rm; or restore the file; or, to give the commit up and start a new "
            "run, remove the store",
            entry.path().string(), kRunFile, dir.path.string()),
        config.run.resume.from == Resume::From::never ? ErrorKind::refused : ErrorKind::corrupt);
  }
}

// Whether the directory has anything that must not be overwritten. A failed start leaves at most a store without a commit.
bool is_used(const fs::path& dir) {
  std::error_code error;
  if (!fs::exists(dir, error)) return false;
  const ChunkStore::Options own{.paths = {dir}, .name = "store"};
  for (const auto& entry : files::entries_of(dir))
    if (const auto name = entry.path().filename().string();
        (name != own.name && !name.starts_with(own.name + "-")) || ChunkStore::had_commit(own))
      return true;
  return false;
}

void make_directory(const fs::path& dir) {
  std::error_code error;
  if (fs::exists(dir, error) && !fs::is_directory(dir, error))
    throw base::Refused(
        fmt::format("--out-dir {} is a file\n  give --out-dir a folder, or a name that does not exist yet", dir.string()));
  if (fs::is_symlink(dir, error) && !fs::exists(dir, error))
    throw base::Refused(
        fmt::format("--out-dir {} is a link whose target does not exist\n  create the folder that it links to, or change the "
                    "link",
                    dir.string()));
  fs::create_directories(dir, error);
  if (error)
    throw Error(
        fmt::format("--out-dir {} cannot be created: {} (errno {})\n  give --out-dir a folder on a file system that can be "
                    "written",
                    dir.string(), error.message(), error.value()));
}

}  // namespace

// The kernel releases the lock of a killed run. On a file system that cannot lock a directory (NFS), the lock of the store
// protects the run.
files::FileHandle lock_directory(const fs::path& dir, std::string_view instead) {
  files::FileHandle handle(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle) throw Error(fmt::format("run directory {} cannot be opened: {}", dir.string(), describe_errno(errno)));
  if (files::try_lock(handle.get(), LOCK_EX) == files::Locked::by_another)
    throw Error(fmt::format("{} is in use by another run\n  wait for that run or stop it, or give {}", dir.string(), instead));
  return handle;
}

void write_json(const fs::path& file, const nlohmann::json& value) { write_text(file, seal_indented(value)); }

fs::path run_resumed(const RunConfig& c) {
  const auto dir = c.run.resume.directory(c.run.out_dir);
  return c.run.resume.from != Resume::From::never && fs::exists(dir / kConfigFile) ? dir : fs::path();
}

std::optional<RunConfig> settings_of_resumed(const RunConfig& c) try {
  const auto dir = run_resumed(c);
  if (dir.empty()) return std::nullopt;
  RunConfig then;
  apply_file(then, dir / kConfigFile);
  return then;
} catch (const Error&) {
  return std::nullopt;
}

void demand_run_to_resume(const std::string& dir) {
  if (fs::exists(fs::path(dir) / kRunFile)) return;
  throw base::Refused(
      fmt::format("--resume {}: this directory has no run\n  give the directory of a run, or --resume auto, which starts a new "
                  "run if there is none",
                  dir));
}

// Older versions always held a part out. Opening the run reports what is wrong with its file.
bool holds_out(const RunConfig& c) {
  const auto dir = run_resumed(c);
  const bool needs_part = c.train.eval_batches > 0 && c.data.eval_files.empty();
  if (dir.empty() || !fs::exists(dir / kRunFile)) return needs_part;
  bool held_out = true;
  for (const auto* const name : {kRunFileCopy, kRunFile}) try {
      held_out = parse_sealed(read_text_file(dir / name)).value(kHoldsOut, true);
    } catch (const std::exception&) {  // then the other file counts, or the usual value
    }
  if (!held_out && needs_part)
    throw base::Refused(
        fmt::format("the run in {} began with --eval-batches 0 or --eval-data, so it trains on all of its data and has "
                    "nothing to evaluate on\n  continue with --eval-batches 0 or with --eval-data, or start a new run "
                    "in another --out-dir",
                    dir.string()));
  return held_out;
}

RunDir open_run_dir(RunConfig& config) {
  if (config.run.resume.names_run()) {
    config.run.out_dir = config.run.resume.run;
    demand_run_to_resume(config.run.resume.run);
  }
  RunDir dir{.path = config.run.out_dir,
             .lock = {},
             .store = store_options(config),
             .resume = false,
             .run_id = new_run_id(),
             .reshard_from = {},
             .machines = {},
             .result = {}};
  dir.store.run_ids = {dir.run_id};
  make_directory(dir.path);
  dir.lock = lock_directory(dir.path);
  if (config.run.resume.from == Resume::From::never && is_used(dir.path))
    throw base::Refused(
        fmt::format("{} is not empty\n  give --resume auto to continue the run in it, or another --out-dir to start a new one",
                    dir.path.string()));
  if (is_unfinished_copy(dir.path)) refuse_unfinished_copy(dir.path);
  if (!fs::exists(dir.path / kRunFile)) {
    demand_no_commits(dir, config);
    return dir;
  }

  const auto run = read_run_file(dir.path);
  dir.has_committed = run.has_committed;
  dir.computed_with = run.computed_with;
  dir.store.run_ids = run.store.run_ids;
  const auto first = run.store_of(0, config.memory.nvme_path);
  const auto home = first.paths.front() / first.name;
  if (!fs::exists(home))
    throw Error(
        fmt::format(
            "the run in {} has its state in {}, but the directory is missing\n  mount that disk, or give the place where it is "
            "now with --nvme-path; or, to give the run up, run terrace ckpt rm {} and start it again with --resume auto",
            dir.path.string(), home.string(), dir.path.string()),
        ErrorKind::corrupt);
  demand_own_store(first, dir.path);
  if (!ChunkStore::has_commit(first)) {  // the run must start again
    // With one generation, a step revokes the commit before it overwrites its bytes, so a missing commit is no damage.
    if (run.store.generations > 1 && (run.has_committed || fs::exists(dir.path / kResultFile)))
      throw Error(
          fmt::format(
              "the run in {} has committed, but its store {} has no commit any more; starting again would overwrite its "
              "chunks\n  bring back the files commit.* and index.* there; or, to give the run up, run terrace ckpt rm "
              "{} and start it again with --resume auto",
              dir.path.string(), home.string(), dir.path.string()),
          ErrorKind::corrupt);
    if (run.store.generations == 1)
      base::warn(
          fmt::format("the run in {} had --durability off or none and committed nothing, so it starts again; with --durability "
                      "commit a run can be continued",
                      dir.path.string()));
    set_stores(dir, run, config, 0);  // agree_on_resume() looks at the other ranks' stores, and makes this a new run
    return dir;
  }
  auto then = run.fingerprint, now = fingerprint(config);
  take_layout(then);
  take_layout(now);
  const auto difference = describe_difference(then, now);
  if (!difference.empty() && !config.run.force)
    throw base::Refused(
        fmt::format("the run in {} has another model, data or seed:\n{}\n  give the values of that run, or another --out-dir; "
                    "--force resumes it with the new values",
                    dir.path.string(), difference));
  if (run.store.generations != dir.store.generations)
    throw base::Refused(fmt::format(
        "the run in {} has {} of the state on disk, but --durability {} needs {}, and this cannot change after a run has "
        "begun\n  continue with --durability {}",
        dir.path.string(), run.store.generations == 1 ? "one generation" : "two generations", word_of(config.run.durability),
        dir.store.generations == 1 ? "one" : "two", run.store.generations == 1 ? "off" : "commit or step"));
  // The only generation of the run would be overwritten and never committed again.
  if (config.run.durability == Durability::none)
    throw base::Refused(
        fmt::format("the run in {} has committed its state, which a run with --durability none would lose\n  continue "
                    "with --durability off",
                    dir.path.string()));
  demand_tokenizer(dir.path, run, &config);
  dir.resume = true;
  dir.machines = run.machines;
  dir.data_content = run.data_content;
  set_stores(dir, run, config, 0);
  demand_layout(dir, run, config);
  if (fs::exists(dir.path / kResultFile))
    read_json(dir.path / kResultFile, [&](const nlohmann::json& result) {
      const bool enough = result.at("steps").get<std::int64_t>() >= config.train.steps;
      if (enough && result.at("weights_xxh64").is_string()) dir.result = result;
      return 0;
    });
  return dir;
}

RunDir rank_dir(const RunConfig& config, int rank) {
  const auto path = config.run.resume.directory(config.run.out_dir);
  RunDir dir{.path = path,
             .lock = {},
             .store = store_options(config),
             .resume = false,
             .reshard_from = {},
             .machines = {},
             .result = {}};
  if (fs::exists(path / kRunFile)) {
    const auto run = read_run_file(path);
    dir.has_committed = run.has_committed;
    set_stores(dir, run, config, static_cast<std::size_t>(rank));
    return dir;
  }
  dir.store.name = store_name_of_rank(dir.store.name, static_cast<std::size_t>(rank));
  return dir;
}

bool has_other_bits(const RunDir& dir, const RunConfig& config) {
  return dir.resume && !dir.computed_with.empty() && dir.computed_with != bits_group(config);
}

void warn_of_other_bits(const RunDir& dir, const RunConfig& config) {
  if (!has_other_bits(dir, config)) return;
  base::warn(
      fmt::format("the run in {} was computed with {}, and continues with {}: it stays correct, but its losses and weights "
                  "get other bits than on one kind of processor",
                  dir.path.string(), dir.computed_with, bits_group(config)));
}

std::vector<std::string> recorded_paths(const RunDir& dir) {
  std::vector<std::string> paths;
  for (const auto& path : dir.store.paths) {
    std::error_code error;
    paths.push_back(fs::equivalent(path, dir.path, error) ? "." : fs::absolute(path).string());
  }
  return paths;
}

std::string command_to_resume(const fs::path& path, int ranks) {
  const auto place = launched();
  const auto command = fmt::format("terrace train --resume {}", shell_word(fs::absolute(path).string()));
  if (!place) return command;
  if (std::getenv(kUnderLaunch)) return fmt::format("terrace launch -n {} -- {}", ranks, command.substr(command.find(' ') + 1));
  return fmt::format("{} as {} ranks", command, ranks);
}

void begin_run(const RunDir& dir, const RunConfig& config) {
  sync_names(dir.path);
  const auto tokenizer = keep_tokenizer(dir.path, config);
  write_text(dir.path / kConfigFile, to_toml(with_absolute_paths(config)));
  auto former_ids = dir.store.run_ids;
  std::erase(former_ids, dir.run_id);  // for a new run, none is left
  nlohmann::json run{{"version", kRecordVersion},
                     {"fingerprint", fingerprint(config)},
                     {"store_paths", recorded_paths(dir)},
                     {"store_name", dir.store.name},
                     {"generations", dir.store.generations},
                     {kMachines, dir.machines},
                     {kUnitsApart, units_apart(config)},
                     {kRunId, dir.run_id},
                     {kFormerRunIds, former_ids},
                     {kHoldsOut, holds_out(config)},
                     {kDataContent, dir.data_content},
                     {kTokenizer, tokenizer},
                     {kHasCommitted, dir.resume},
                     {kComputedWith, bits_group(config)}};
  if (!dir.rank_paths.empty()) run[kRankPaths] = dir.rank_paths;
  write_run_json(dir.path, run);
  std::error_code error;
  for (const auto* const name : {kResultFile, kUnfinishedCopy}) fs::remove(dir.path / name, error);
}

void record_first_commit(const RunDir& dir, const std::optional<std::string>& resumed) {
  auto run = read_run_json(dir.path, [](const nlohmann::json& j) { return j; });
  if (dir.store.generations > 1) run[kHasCommitted] = true;  // with one generation, the next step revokes the commit
  auto& former = run[kFormerRunIds] = nlohmann::json::array();
  if (resumed) former.push_back(*resumed);
  write_run_json(dir.path, run);
}

void remove_former_stores(const RunDir& dir, std::size_t ranks) {
  const auto now = LaidOut::of(dir.store.name);
  std::set<fs::path> paths(dir.store.paths.begin(), dir.store.paths.end());
  for (const auto& former : dir.reshard_from) paths.insert(former.paths.begin(), former.paths.end());
  const auto of_rank = now.name() + std::string(kRankSuffix);
  const auto is_former = [&](const std::string& name) {
    const bool of_now = is_rank_of(now.name(), name);
    const auto rank = of_now && name.starts_with(of_rank) ? std::strtoull(name.c_str() + of_rank.size(), nullptr, 10) : 0;
    return is_store_of(now.base, name) && !(of_now && rank < ranks);
  };
  for (const auto& store : own_folders(paths, dir.store.run_ids, is_former)) try {
      store::remove_store(store);
    } catch (const Error& problem) {
      base::warn(fmt::format("a store of the former layout stays: {}", problem.what()));
    }
}

std::vector<ChunkStore::Options> stores_of_run(const fs::path& path, std::span<const fs::path> given) {
  demand_run(path);
  auto stores = read_run_file(path).stores(given);
  for (const auto& store : stores) demand_own_store(store, path);
  return stores;
}

ChunkStore::Options first_store_of_run(const fs::path& path) {
  demand_run(path);
  auto store = read_run_file(path).store_of(0, {});
  demand_own_store(store, path);
  return store;
}

std::vector<fs::path> store_folders_of_run(const fs::path& path, std::span<const fs::path> given) {
  demand_run(path);
  const auto run = read_run_file(path);
  const auto base = LaidOut::of(run.store.name).base;
  std::set<fs::path> paths;
  for (const auto& store : run.stores(given)) paths.insert(store.paths.begin(), store.paths.end());
  return own_folders(paths, run.store.run_ids, [&](const std::string& name) { return is_store_of(base, name); });
}

std::string store_name_of_rank(const std::string& name, std::size_t rank) {
  return rank == 0 ? name : fmt::format("{}-rank{}", name, rank);
}

void copy_run_files(const fs::path& from, const fs::path& to, const std::string& run_id) {
  for (const auto* const name : {kConfigFile, kMetricsFile, kAlgorithmsFile})
    if (fs::exists(from / name)) {
      std::error_code error;
      fs::copy_file(from / name, to / name, error);
      if (error)
        throw Error(
            fmt::format("{} cannot be copied to {}: {}", (from / name).string(), to.string(), describe_errno(error.value())));
      files::sync_to_disk(to / name);
    }
  if (const auto files = lm::read_tokenizer_files(tokenizer_folder(from)); !files.empty())
    lm::write_tokenizer_files(tokenizer_folder(to), files);
  auto run = read_run_json(from, [](const nlohmann::json& j) { return j; });
  run["store_paths"] = {"."};
  run["store_name"] = "store";
  run[kRunId] = run_id;
  run[kHasCommitted] = true;
  for (const auto* const of_the_stores : {kFormerRunIds, kRankPaths}) run.erase(of_the_stores);
  for (const auto* const name : {kRunFileCopy, kRunFile}) write_json(to / name, run);
}

void demand_settings_of_run(const fs::path& path, const RunConfig& config) {
  const auto then = read_run_file(path).fingerprint;
  const auto now = settings_over_resumes(config);
  nlohmann::json in_run, in_config;
  for (const auto& [key, value] : now.items())
    if (then.contains(key)) in_run[key] = then.at(key), in_config[key] = value;
  if (const auto difference = describe_difference(in_run, in_config, "in run.json", "here"); !difference.empty())
    throw Error(
        fmt::format("the run in {} has other settings than its {}:\n{}\n  restore that file, and leave out --set for them",
                    path.string(), kConfigFile, difference),
        ErrorKind::corrupt);
}

// run.json is removed last: until then, the command can be repeated.
void forget_run(const fs::path& path) {
  for (const auto* const name : {kUnfinishedCopy, kRunFileCopy, kRunFile}) files::remove_path(path / name);
}

std::string damaged_tokenizer(const fs::path& path) {
  demand_run(path);
  return damaged_tokenizer(path, read_run_file(path));
}

void demand_intact_tokenizer(const fs::path& path) {
  demand_run(path);
  demand_tokenizer(path, read_run_file(path), nullptr);
}

void record_algorithms(const RunDir& dir, const std::string& chosen) {
  if (!chosen.empty()) write_text(dir.path / kAlgorithmsFile, chosen);
}

std::string recorded_algorithms(const RunDir& dir) {
  const auto file = dir.path / kAlgorithmsFile;
  return dir.resume && fs::exists(file) ? read_text(file) : std::string();
}

void record(const RunDir& dir, const char* name, const std::string& text) { write_text(dir.path / name, text); }

void write_result(const RunDir& dir, const nlohmann::json& result) { write_json(dir.path / kResultFile, result); }

}  // namespace terrace::cli
