#include <terrace/examples/terrace/agree_on_resume.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include <terrace/core/notice.h>
#include <terrace/examples/terrace/setup.h>
#include <terrace/offload/commit_files.h>

namespace terrace::cli {
namespace {

// What a rank can resume from.
enum class Committed { no_store, nothing, once, more };

Committed committed(const RunDir& dir, bool something) {
  const auto home = dir.store.paths.front() / dir.store.name;
  if (!something) return std::filesystem::exists(home) ? Committed::nothing : Committed::no_store;
  // If the run reached an end before, all ranks have committed that.
  const bool may_be_alone = dir.reshard_from.empty() && !dir.has_committed && !std::filesystem::exists(dir.path / kResultFile);
  return may_be_alone && CommitFiles::only_the_first(home) ? Committed::once : Committed::more;
}

}  // namespace

void agree_on_resume(RunDir& dir, const RunConfig& config, Team& team) {
  const bool mine = team.first() ? dir.resume : !dir.reshard_from.empty() || ChunkStore::has_commit(dir.store);
  const auto all = team.each(static_cast<double>(committed(dir, mine)));
  const auto least = static_cast<Committed>(std::ranges::min(all)), most = static_cast<Committed>(std::ranges::max(all));
  const bool here = static_cast<Committed>(all.front()) >= Committed::once;
  // A rank died during the first commit of the run. No rank continues before all have a commit, so the run can only start
  // again.
  const bool anew = here && least == Committed::nothing && most == Committed::once;
  if (anew && team.first())
    warn(fmt::format("a rank of the run in {} ended during the first commit, which is incomplete: the run starts again",
                     dir.path.string()));
  const bool wanted = here && !anew;
  team.together([&] {
    if (!here && most == Committed::more && mine && dir.store.generations > 1)
      throw Error(
          fmt::format("rank {} of the run in {} has a commit in its store {}, but rank 0 has none; starting again would "
                      "overwrite it\n  bring the store of rank 0 back; or, to give the run up, remove the stores of all "
                      "ranks (terrace ckpt rm)",
                      team.rank(), dir.path.string(), dir.store.name),
          Exit::corrupt);
    if (wanted && !mine)
      throw Error(
          fmt::format(
              "rank {} of the run in {} has no commit, but rank 0 has one\n  restore its store {}, or start a new run in "
              "another --out-dir",
              team.rank(), dir.path.string(), dir.store.name),
          Exit::corrupt);
  });
  dir.resume = wanted;
  if (wanted) return;
  dir.has_committed = false;
  dir.reshard_from.clear();
  dir.store = store_options(config);
  dir.store.name = store_name_of_rank(dir.store.name, static_cast<std::size_t>(team.rank()));
}

}  // namespace terrace::cli
