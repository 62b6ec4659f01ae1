#include <terrace/examples/terrace/kept_commits.h>

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/files.h>
#include <terrace/core/notice.h>
#include <terrace/core/units.h>
#include <terrace/examples/terrace/setup.h>
#include <terrace/offload/common_commit.h>
#include <terrace/offload/copy_store.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
constexpr const char* kKeptFolder = "kept";
constexpr std::string_view kStepPrefix = "step-";

fs::path directory_of_step(const fs::path& run, std::uint64_t step) {
  return run / kKeptFolder / fmt::format("{}{:08}", kStepPrefix, step);
}

// Every folder of that name, finished or not.
std::vector<KeptCommit> step_folders(const fs::path& run) {
  std::vector<KeptCommit> all;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run / kKeptFolder, error)) {
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

// A store has room for two generations of each chunk, and a copy that nothing is written to needs one: the places between the
// committed chunks are given back to the file system, where it can do that.
void free_gaps(const fs::path& data, std::vector<StoredChunk> chunks) {
  const auto file = open_regular(data, O_WRONLY | O_CLOEXEC);
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

// The newest copy needs two generations until it is finished. Ranks of a machine need about the same.
void CommitKeeper::demand_room() const {
  if (!keeps()) return;
  if (team_.size() > 1 && team_.machines().size() > 1)
    throw Error(
        fmt::format("--ckpt-keep {} with ranks on several machines: the copies of a commit would be spread over them\n  "
                    "leave --ckpt-keep out, and copy commits with terrace ckpt copy",
                    config_.ckpt_keep),
        Exit::usage);
  const auto copies = static_cast<std::uint64_t>(config_.ckpt_keep);
  const auto ranks = static_cast<std::uint64_t>(team_.size());
  const auto state = state_bytes();
  const auto needed = (copies + 1) * state * ranks;
  const auto has = std::min<std::uint64_t>(copies, kept_commits(dir_.path).size()) * state * ranks;
  const auto refuse = [&](const std::string& of, std::uint64_t there) {
    throw Error(fmt::format("--ckpt-keep {} does not fit: {} for {} copies of the state, {} each, and {}\n  lower --ckpt-keep, "
                            "or {}",
                            copies, format_bytes(needed), copies, format_bytes(state * ranks), of,
                            there == 0 ? "raise --nvme-limit" : "free " + format_bytes(there) + " there"),
                Exit::does_not_fit);
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
    if (!team_.first()) return;
    for (const auto& kept : step_folders(dir_.path))
      if (is_unfinished_copy(kept.directory)) remove_copy(kept.directory);
  });
}

void CommitKeeper::copy_last_commit() {
  if (!keeps()) return;
  const auto& store = *engine_.store();
  const auto last = store.last_commit();
  if (!last) return;
  folder_ = directory_of_step(dir_.path, last->step);
  bool there = false;
  team_.together([&] {
    if (!team_.first()) return;
    there = is_only_a_copy(folder_);
    if (!there) unfinished_.emplace(folder_);
  });
  if (team_.any(there)) return;  // of a run that was killed between the copy and the next commit
  auto own = dir_.store;
  own.paths = {folder_};
  own.name = store_name_of_rank("store", static_cast<std::size_t>(team_.rank()));
  own.stripe_weights = {};
  own.run_ids = {dir_.run_id};
  copying_ = std::async(std::launch::async, [&store, own, stop = stop_.get_token()] {
    copy_store(store, own, stop);
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
  team_.together([] {});  // no rank writes any more
  unfinished_.reset();
  std::error_code stays;
  if (team_.first()) fs::remove(folder_, stays);
}

void CommitKeeper::remove_oldest() const {
  if (!team_.first() || !keeps()) return;
  const auto all = kept_commits(dir_.path);
  const auto most = static_cast<std::size_t>(config_.ckpt_keep - 1);
  for (std::size_t i = 0; i + most < all.size(); ++i) try {
      remove_copy(all[i].directory);
    } catch (const std::exception& error) {
      warn(fmt::format("--ckpt-keep: {} stays: {}", all[i].directory.string(), error.what()));
    }
}

fs::path directory_of_commit(const fs::path& run, std::span<const fs::path> given, std::uint64_t step) {
  std::string steps;
  for (const auto& kept : kept_commits(run)) {
    if (kept.step == step) return kept.directory;
    steps += fmt::format("{}{}", steps.empty() ? "" : ", ", kept.step);
  }
  auto stores = stores_of_run(run, given);
  for (auto& store : stores) store.read_only = true;
  const auto last = open_at_common_commit(stores).step;
  if (last == step) return run;
  throw Error(
      fmt::format("{} has no commit after step {}\n  there are those after step {}{}{}; terrace ckpt list {} shows them",
                  run.string(), step, steps, steps.empty() ? "" : ", ", last, run.string()),
      Exit::usage);
}

void remove_kept_commits(const fs::path& run) {
  for (const auto& kept : step_folders(run))
    if (is_unfinished_copy(kept.directory) || is_only_a_copy(kept.directory)) remove_copy(kept.directory);
  std::error_code error;
  fs::remove(run / kKeptFolder, error);  // stays if a user has something in it
}

}  // namespace terrace::cli
