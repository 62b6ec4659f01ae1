#include <terrace/offload/manager/disk_tier.h>

#include <unistd.h>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/offload/manager/chunk_manager.h>

namespace terrace::offload {
namespace {

std::uint64_t whole_pages(std::uint64_t bytes) { return bytes / kPageBytes * kPageBytes; }

bool has_disk(const OffloadOptions& options) { return !options.nvme_paths.empty() || !options.store.empty(); }

// `store` is a whole path, or a name in each of `nvme_paths`.
ChunkStore::Options lasting_store(const OffloadOptions& options) {
  const auto folder = options.store.lexically_normal();
  const bool is_name = folder.has_filename() && !folder.has_parent_path();
  if (!options.nvme_paths.empty() && !is_name)
    throw Error(fmt::format("store is {}, and nvme_paths are given, too\n  with nvme_paths, store is a name in each of them; "
                            "without, it is the path of the store's folder",
                            options.store.string()),
                ErrorKind::refused);
  ChunkStore::Options store;
  store.paths = options.nvme_paths;
  if (store.paths.empty()) store.paths = {is_name ? std::filesystem::path(".") : folder.parent_path()};
  store.name = folder.filename().string();
  store.run_ids = {""};  // the store of a training run, which has an id, is neither opened nor replaced
  return store;
}

}  // namespace

Budget budget_of(const OffloadOptions& options) {
  const bool disk = has_disk(options);
  if (disk && options.nvme_bytes < kPageBytes)
    throw Error(fmt::format("{}, but nvme_bytes is 0\n  set nvme_bytes to the size of the disk tier",
                            options.store.empty() ? "nvme_paths are given" : "store is given"),
                ErrorKind::refused);
  if (!disk && options.nvme_bytes != 0)
    throw Error("nvme_bytes is given, but nvme_paths is empty\n  give a folder on a disk, or leave nvme_bytes at 0",
                ErrorKind::refused);
  if (options.device_bytes == kUnlimited || options.host_bytes == kUnlimited || options.nvme_bytes == kUnlimited) {
    throw Error(
        "a chunk manager allocates its tiers at once, so they cannot be unlimited\n  give a size for device_bytes, host_bytes "
        "and nvme_bytes",
        ErrorKind::refused);
  }
  return {whole_pages(options.device_bytes), whole_pages(options.host_bytes), disk ? whole_pages(options.nvme_bytes) : 0};
}

std::uint32_t generations_of(const OffloadOptions& options) { return options.store.empty() ? 1 : 2; }

std::unique_ptr<ChunkStore> make_disk_tier(const OffloadOptions& options, const Budget& budget, const void* owner) {
  if (budget.disk == 0) return nullptr;
  ChunkStore::Options store;
  const bool lasts = !options.store.empty();
  if (lasts) store = lasting_store(options);
  store.generations = generations_of(options);
  store.io = options.io;
  store.deadline = options.io_deadline;
  store.file_ops = options.file_ops;
  store.capacity_bytes = budget.disk;
  // A store whose commits are all damaged is opened, too: opening it says what is wrong, and making a new one would remove it.
  if (lasts) return ChunkStore::had_commit(store) ? ChunkStore::open(store) : ChunkStore::create(store);
  store.paths = options.nvme_paths;
  store.name = fmt::format("offload-{}-{}", ::getpid(), owner);
  store.durable = false;
  store.temporary = true;
  return ChunkStore::create(store);
}

}  // namespace terrace::offload
