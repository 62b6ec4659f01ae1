#include <terrace/offload/store/common_commit.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/core/base/error.h>

namespace terrace::store {

std::unique_ptr<ChunkStore> open_at_commit(ChunkStore::Options options, std::uint64_t step) {
  options.not_after_step = step;
  auto store = ChunkStore::open(options);
  if (store->last_commit()->step != step)
    throw Error(
        fmt::format(
            "{} has no commit of step {}, the last step that another rank has committed\n  go back to an exported checkpoint",
            (options.paths.front() / options.name).string(), step),
        ErrorKind::corrupt, {.path = (options.paths.front() / options.name).string()});
  return store;
}

CommonCommit open_at_common_commit(std::span<const ChunkStore::Options> ranks) {
  CommonCommit common{.stores = {}, .step = ~0ULL};
  for (const auto& options : ranks) {
    const auto step = common.stores.emplace_back(ChunkStore::open(options))->last_commit()->step;
    common.step = std::min(common.step, step);
    common.newest_step = std::max(common.newest_step, step);
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    auto& store = common.stores[r];
    if (store->last_commit()->step == common.step) continue;
    store.reset();
    store = open_at_commit(ranks[r], common.step);
  }
  return common;
}

}  // namespace terrace::store
