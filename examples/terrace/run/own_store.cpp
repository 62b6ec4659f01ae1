#include <terrace/examples/terrace/run/own_store.h>

#include <algorithm>
#include <random>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace::cli {

std::string new_run_id() {
  std::random_device random;  // reads the kernel's generator
  std::string id;
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", random());
  return id;
}

void demand_own_store(const ChunkStore::Options& store, const std::filesystem::path& run) {
  const auto commit = ChunkStore::commit_of_another(store);
  if (!commit) return;
  const auto named = [](const std::string& id) { return id.empty() ? "no run_id" : "run_id " + id; };
  throw Error(
      fmt::format(
          "the store {} belongs to another run: its commit after step {} has {}, and the run in {} has {}\n  a copy of "
          "this run directory, or a new run at its former path, has written there: go back to an exported checkpoint or "
          "a kept commit; make copies with terrace ckpt copy, which gives each its own store\n  if only run.json is an "
          "older one of the same run, write the run_id of the commit into it and remove its member xxh3",
          (store.paths.front() / store.name).string(), commit->step, named(commit->run_id), run.string(),
          named(store.run_ids.front())),
      ErrorKind::corrupt);
}

bool is_there(const ChunkStore::Options& store) {
  return std::ranges::all_of(store.paths, [&](const auto& path) {
    std::error_code error;
    return std::filesystem::is_directory(path / store.name, error);
  });
}

ChunkStore::Options where_it_is(ChunkStore::Options store, std::span<const std::filesystem::path> given) {
  if (given.size() != store.paths.size() || is_there(store)) return store;
  auto moved = store;
  for (std::size_t p = 0; p < given.size(); ++p) moved.paths[p] = std::filesystem::absolute(given[p]).lexically_normal();
  return is_there(moved) && !ChunkStore::commit_of_another(moved) ? moved : store;
}

}  // namespace terrace::cli
