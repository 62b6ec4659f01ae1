#include <terrace/offload/store/store_folder.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/file_lock.h>
#include <terrace/core/base/files.h>
#include <terrace/offload/store/dead_stores.h>
#include <terrace/offload/store/extent_files.h>

namespace terrace::store {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw errno_error(errno, path.string(), fmt::format("{}: {}", path.string(), what),
                    "fix the permissions there, and run the command again");
}

// "index.12.json"
bool is_index(std::string_view name) {
  constexpr std::string_view kBegin = "index.", kEnd = ".json";
  if (name.size() <= kBegin.size() + kEnd.size() || !name.starts_with(kBegin) || !name.ends_with(kEnd)) return false;
  name.remove_prefix(kBegin.size());
  name.remove_suffix(kEnd.size());
  return std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

bool is_store_file(const std::string& name) {
  std::string_view base = name;
  for (const std::string_view ending : {".tmp", ".copy"})
    if (base.ends_with(ending)) base.remove_suffix(ending.size());
  return base == "data" || base == "lock" || base == "commit.0" || base == "commit.1" || is_index(base);
}

void remove_store(const std::filesystem::path& folder, const Log& log) {
  const files::FileHandle directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!directory) fail(folder, "the directory could not be opened");
  std::vector<std::string> names;
  for (const auto& entry : files::entries_of(folder)) {
    names.push_back(entry.path().filename().string());
    struct stat info {};
    if (::fstatat(directory.get(), names.back().c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) fail(entry.path(), "stat");
    if (S_ISDIR(info.st_mode) || !is_store_file(names.back()))
      throw Error(
          fmt::format("{} is not only a store of a run: it also has {}, so nothing is removed\n  move that away, or, if "
                      "the folder is not the store of this run, correct run.json",
                      folder.string(), names.back()),
          ErrorKind::corrupt, {.path = folder.string()});
  }
  const files::FileHandle lock(::openat(directory.get(), kLockName, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!lock && errno != ENOENT) fail(folder / kLockName, "the lock file could not be opened");
  const auto locked = lock ? files::try_lock(lock.get(), LOCK_EX) : files::Locked::yes;
  if (locked == files::Locked::impossible) files::warn_without_locks(log, folder / kLockName);
  if (locked == files::Locked::by_another)
    throw Error(fmt::format("{} is in use by another run\n  wait for it or stop it", folder.string()), ErrorKind::failed,
                {.code = code_of_errno(EWOULDBLOCK), .path = folder.string()});
  // `names` is sorted, so records are removed first: data without a record are harmless, a record without its data is not.
  for (const auto& name : names)
    if (::unlinkat(directory.get(), name.c_str(), 0) != 0 && errno != ENOENT)
      fail(folder / name, "the file could not be removed");
  if (::rmdir(folder.c_str()) != 0) fail(folder, "the directory could not be removed");
  files::sync_to_disk(std::filesystem::absolute(folder).parent_path());  // else a power loss brings a part of it back
}

}  // namespace terrace::store
