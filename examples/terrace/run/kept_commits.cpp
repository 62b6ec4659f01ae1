#include <terrace/examples/terrace/run/kept_commits.h>

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/base/files.h>
#include <terrace/core/base/notice.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/offload/store/copy_store.h>
#include <terrace/offload/store/recorded_commit.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
constexpr const char* kKeptFolder = "kept";
constexpr std::string_view kStepPrefix = "step-";

fs::path directory_of_step(const fs::path& run, std::uint64_t step) {
  return run / kKeptFolder / fmt::format("{}{:08}", kStepPrefix, step);
}

// Every folder with the name of a kept commit, finished or not.
std::vector<KeptCommit> step_folders(const fs::path& run) {
  std::vector<KeptCommit> all;
  std::error_code error;
  if (!fs::exists(run / kKeptFolder, error)) return all;
  for (const auto& entry : files::entries_of(run / kKeptFolder)) {
    const auto name = entry.path().filename().string();
    KeptCommit kept{.step = 0, .directory = entry.path()};
    if (!name.starts_with(kStepPrefix)) continue;
    const auto* const end = name.data() + name.size();
    const auto [stop, failed] = std::from_chars(name.data() + kStepPrefix.size(), end, kept.step);
    if (failed == std::errc{} && stop == end) all.push_back(std::move(kept));
  }
  std::ranges::sort(all, {}, &KeptCommit::step);
  return all;
}

bool is_removable(const fs::path& folder) { return is_left_of_a_copy(folder) || is_only_a_copy(folder); }

enum class Failing : bool { warns, was_warned_of };
void try_to_remove(const fs::path& folder, Failing failing = Failing::warns) try {
  remove_copy(folder);
} catch (const std::exception& error) {
  if (failing == Failing::warns) base::warn(fmt::format("--ckpt-keep: {} stays: {}", folder.string(), describe(error)));
}

// Removes what a kill left, or an earlier removal that found the store in use.
void remove_what_is_left(const fs::path& run, Failing failing) {
  for (const auto& kept : step_folders(run)) {
    if (is_left_of_a_copy(kept.directory)) try_to_remove(kept.directory, failing);
    remove_mark_of_finished(kept.directory);
  }
}

// A store has room for two generations of each chunk, but a copy to which nothing is written needs only one. So the gaps
// between the committed chunks are given back to the file system, if it supports that.
void free_gaps(const fs::path& data, std::vector<StoredChunk> chunks) {
  const auto file = files::open_regular(data, O_WRONLY | O_CLOEXEC);
  if (!file) return;
  std::ranges::sort(chunks, {}, &StoredChunk::offset);
  std::uint64_t end = 0;
  for (const auto& chunk : chunks) {
    if (chunk.offset > end)
      static_cast<void>(::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(end),
                                    static_cast<off_t>(chunk.offset - end)));
    end = chunk.offset + round_up(chunk.description.bytes, kPageBytes);
  }
}

}  // namespace

std::vector<KeptCommit> kept_commits(const fs::path& run) {
  auto all = step_folders(run);
  std::erase_if(all, [](const KeptCommit& kept) { return !is_only_a_copy(kept.directory); });
  return all;
}

std::uint64_t CommitKeeper::state_bytes() const {
  const auto& map = engine_.map();
  std::uint64_t bytes = 0;
  for (std::uint32_t c = 0; c < map.chunks().size(); ++c)
    if (map.committed(ChunkId(c))) bytes += round_up(map.chunks()[ChunkId(c)].bytes, kPageBytes);
  return bytes;
}

// The newest copy needs two generations until it is finished. All ranks of a machine need about as much as this one.
void CommitKeeper::demand_room() const {
  if (!keeps()) return;
  if (team_.size() > 1 && team_.machines().size() > 1)
    throw base::Refused(
        fmt::format("--ckpt-keep {} with ranks on several machines: the copies of a commit would be spread over them\n  "
                    "leave --ckpt-keep out, and copy commits with terrace ckpt copy",
                    config_.run.ckpt_keep));
  const auto copies = static_cast<std::uint64_t>(config_.run.ckpt_keep);
  const auto ranks = static_cast<std::uint64_t>(team_.size());
  const auto state = state_bytes();
  const auto needed = (copies + 1) * state * ranks;
  const auto has = std::min<std::uint64_t>(copies, kept_commits(dir_.path).size()) * state * ranks;
  const auto refuse = [&](const std::string& of, std::uint64_t there) {
    throw Error(fmt::format("--ckpt-keep {} does not fit: {} for {} copies of the state, {} each, and {}\n  lower --ckpt-keep, "
                            "or {}",
                            copies, format_bytes(needed), copies, format_bytes(state * ranks), of,
                            there == 0 ? "raise --nvme-limit" : "free " + format_bytes(there) + " there"),
                ErrorKind::does_not_fit);
  };
  if (const auto limit = budgets(config_).of(Tier::disk); limit != 0 && limit != kUnlimited)
    if (const auto used = engine_.reserved_bytes()[Tier::disk]; used + needed / ranks > limit)
      refuse(fmt::format("{} for the run itself, are more than the {} of --nvme-limit that each rank has", format_bytes(used),
                         format_bytes(limit)),
             0);
  std::error_code error;
  const auto space = fs::space(dir_.path, error);
  if (!error && has < needed && space.available < needed - has)
    refuse(fmt::format("{} has {} free", dir_.path.string(), format_bytes(space.available)), needed - has - space.available);
}

void CommitKeeper::begin() const {
  team_.together([&] {
    if (team_.first()) remove_what_is_left(dir_.path, Failing::warns);
  });
}

// Returns false if the folder is already a copy, because the run was killed between the copy and the next commit; or if it has
// files of a user, because a run was continued in an earlier copy.
bool CommitKeeper::begin_copy(std::uint64_t step) {
  if (is_only_a_copy(folder_)) return false;
  try {
    unfinished_.emplace(folder_);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::refused) throw;
    base::warn(fmt::format("--ckpt-keep: the commit after step {} is not copied: {}", step, error.what()));
    return false;
  }
}

void CommitKeeper::copy_last_commit() {
  if (!keeps()) return;
  const auto& store = *engine_.store();
  const auto last = store.last_commit();
  if (!last) return;
  folder_ = directory_of_step(dir_.path, last->step);
  bool copies = false;
  team_.together([&] { copies = team_.first() && begin_copy(last->step); });
  if (!team_.any(copies)) return;
  auto own = dir_.store;
  own.paths = {folder_};
  own.name = store_name_of_rank("store", static_cast<std::size_t>(team_.rank()));
  own.stripe_weights = {};
  own.run_ids = {dir_.run_id};
  copying_ = std::async(std::launch::async, [&store, own, stop = stop_.get_token()] {
    store::copy_store(store, own, stop);
    free_gaps(own.paths.front() / own.name / "data", store.committed());
  });
}

void CommitKeeper::finish_copy() {
  if (!copying_.valid()) return;
  team_.together([&] { copying_.get(); });
  team_.together([&] {
    if (!team_.first()) return;
    copy_run_files(dir_.path, folder_, dir_.run_id);
    unfinished_->finish();
    unfinished_.reset();
  });
}

void CommitKeeper::drop_copy() {
  if (!copying_.valid()) return;
  stop_.request_stop();
  copying_.wait();
  team_.together([] {});  // after this no rank writes
  unfinished_.reset();
  std::error_code stays;
  if (team_.first()) fs::remove(folder_, stays);
}

void CommitKeeper::remove_oldest() const {
  if (!team_.first() || !keeps()) return;
  remove_what_is_left(dir_.path, Failing::was_warned_of);
  const auto all = kept_commits(dir_.path);
  const auto most = static_cast<std::size_t>(config_.run.ckpt_keep - 1);
  for (std::size_t i = 0; i + most < all.size(); ++i) try_to_remove(all[i].directory);
}

std::optional<std::uint64_t> last_step_of(const fs::path& run, std::span<const fs::path> given) {
  std::optional<std::uint64_t> step;
  for (const auto& store : stores_of_run(run, given)) {
    const auto home = store.paths.front() / store.name;
    if (!fs::exists(home))
      throw Error(fmt::format("{}: the directory is missing\n  bring it back", home.string()), ErrorKind::corrupt);
    const auto commit = store::recorded_commit(home);
    if (!commit) return {};
    step = std::min(step.value_or(commit->step), commit->step);
  }
  return step;
}

fs::path directory_of_commit(const fs::path& run, std::span<const fs::path> given, std::uint64_t step) {
  std::vector<std::uint64_t> steps;
  for (const auto& kept : kept_commits(run)) {
    if (kept.step == step) return kept.directory;
    steps.push_back(kept.step);
  }
  if (const auto last = last_step_of(run, given)) {
    if (*last == step) return run;
    steps.push_back(*last);
  }
  throw base::Refused(fmt::format(
      "{} has no commit after step {}\n  {}; terrace ckpt list {} shows them", run.string(), step,
      steps.empty() ? "it has none yet" : fmt::format("there are those after step {}", fmt::join(steps, ", ")), run.string()));
}

bool remove_kept_commit(const fs::path& run, std::uint64_t step) {
  bool removed = false;
  for (const auto& kept : step_folders(run)) {
    if (kept.step != step || !is_removable(kept.directory)) continue;
    remove_copy(kept.directory);
    removed = true;
  }
  return removed;
}

void remove_kept_commits(const fs::path& run) {
  for (const auto& kept : step_folders(run))
    if (is_removable(kept.directory)) remove_copy(kept.directory);
  std::error_code error;
  fs::remove(run / kKeptFolder, error);  // stays if a user has something in it
}

}  // namespace terrace::cli
