#include <terrace/examples/terrace/ranks/agree_on_resume.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/base/notice.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/offload/store/commit_files.h>

namespace terrace::cli {
namespace {

// Whether a rank's store exists, and has no commit, only the first commit of the run, or more.
enum class Committed { no_store, nothing, once, more };

Committed committed(const RunDir& dir, const ChunkStore::Options& store) {
  const auto home = store.paths.front() / store.name;
  if (!ChunkStore::has_commit(store)) return std::filesystem::exists(home) ? Committed::nothing : Committed::no_store;
  // If the run has ended once, all ranks have committed.
  const bool may_be_alone = !dir.has_committed && !std::filesystem::exists(dir.path / kResultFile);
  return may_be_alone && store::CommitFiles::only_the_first(home) ? Committed::once : Committed::more;
}

// One entry for each rank that wrote the run. If the layout changes, the ranks are not those that wrote it, so the first rank
// looks at all former stores; otherwise each rank looks at its own.
std::vector<Committed> committed_of_all(const RunDir& dir, Team& team) {
  const bool others = team.any(team.first() && !dir.reshard_from.empty());
  std::string mine, all;  // a digit for each store
  team.together([&] {
    const auto look = [&](const ChunkStore::Options& store) {
      mine += static_cast<char>('0' + static_cast<int>(committed(dir, store)));
    };
    if (!others) look(dir.store);
    if (others && team.first()) std::ranges::for_each(dir.reshard_from, look);
  });
  if (others) all = team.of_first(std::move(mine));
  if (!others)
    for (const double digit : team.each(mine.front())) all += static_cast<char>(digit);
  std::vector<Committed> of_ranks;
  for (const char digit : all) of_ranks.push_back(static_cast<Committed>(digit - '0'));
  return of_ranks;
}

// The first rank has read the ids from run.json, or drawn one; the other ranks take these ids.
void agree_on_run_ids(RunDir& dir, Team& team) {
  std::string text = dir.run_id + "\n";
  for (const auto& id : dir.store.run_ids) text += id + "\n";
  auto ids = lines_of(team.of_first(std::move(text)));
  dir.run_id = ids.front();
  ids.erase(ids.begin());
  dir.store.run_ids = ids;
  for (auto& former : dir.reshard_from) former.run_ids = ids;
}

std::vector<std::vector<std::string>> paths_of_ranks(const RunDir& dir, Team& team) {
  std::string mine;
  team.together([&] { mine = nlohmann::json(recorded_paths(dir)).dump(); });
  const auto texts = team.texts(mine);
  std::vector<std::vector<std::string>> all;
  if (std::ranges::adjacent_find(texts, std::ranges::not_equal_to{}) == texts.end()) return all;  // all have the same paths
  for (const auto& text : texts) all.push_back(nlohmann::json::parse(text).get<std::vector<std::string>>());
  return all;
}

}  // namespace

void agree_on_resume(RunDir& dir, const RunConfig& config, Team& team) {
  agree_on_run_ids(dir, team);
  const auto all = committed_of_all(dir, team);
  const auto least = std::ranges::min(all), most = std::ranges::max(all);
  const bool here = all.front() >= Committed::once;
  // A rank died during the first commit of the run. No rank continues before all have a commit, so the run can only start
  // again.
  const bool anew = here && least == Committed::nothing && most == Committed::once;
  if (anew && team.first())
    base::warn(fmt::format("a rank of the run in {} ended during the first commit, which is incomplete: the run starts again",
                           dir.path.string()));
  const bool wanted = here && !anew;
  team.together([&] {
    if (!team.first()) return;
    const auto rank_with = [&](auto is) { return static_cast<std::size_t>(std::ranges::find_if(all, is) - all.begin()); };
    const auto name_of = [&](std::size_t rank) {
      return dir.reshard_from.empty() ? store_name_of_rank(dir.store.name, rank) : dir.reshard_from[rank].name;
    };
    if (!here && most == Committed::more && dir.store.generations > 1) {
      const auto rank = rank_with([](Committed one) { return one == Committed::more; });
      throw Error(
          fmt::format("rank {} of the run in {} has a commit in its store {}, but rank 0 has none; starting again would "
                      "overwrite it\n  bring the store of rank 0 back; or, to give the run up, remove the stores of all "
                      "ranks (terrace ckpt rm)",
                      rank, dir.path.string(), name_of(rank)),
          ErrorKind::corrupt);
    }
    // With another layout, the other stores may have all parts of the state.
    if (wanted && least < Committed::once && dir.reshard_from.empty()) {
      const auto rank = rank_with([](Committed one) { return one < Committed::once; });
      throw Error(
          fmt::format(
              "rank {} of the run in {} has no commit, but rank 0 has one\n  restore its store {}, or start a new run in "
              "another --out-dir",
              rank, dir.path.string(), name_of(rank)),
          ErrorKind::corrupt);
    }
  });
  dir.resume = wanted;
  if (!wanted) {
    dir.has_committed = false;
    dir.reshard_from.clear();
    auto ids = std::move(dir.store.run_ids);
    dir.store = store_options(config);
    dir.store.name = store_name_of_rank(dir.store.name, static_cast<std::size_t>(team.rank()));
    dir.store.run_ids = std::move(ids);
  }
  dir.rank_paths = paths_of_ranks(dir, team);
}

}  // namespace terrace::cli
