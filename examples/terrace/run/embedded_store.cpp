#include <terrace/examples/terrace/run/embedded_store.h>

namespace terrace::cli {

std::optional<ChunkStore::Options> embedded_store(const std::filesystem::path& folder,
                                                  std::span<const std::filesystem::path> given) {
  const auto whole = std::filesystem::absolute(folder / "").lexically_normal().parent_path();  // without a slash at its end
  if (std::filesystem::exists(whole / "run.json") || !whole.has_filename()) return std::nullopt;
  ChunkStore::Options store;
  store.paths.assign(given.begin(), given.end());
  if (store.paths.empty()) store.paths = {whole.parent_path()};
  store.name = whole.filename().string();
  if (store.name.front() == '.' || !ChunkStore::had_commit(store)) return std::nullopt;
  return store;
}

}  // namespace terrace::cli
