#include <terrace/offload/store/recorded_commit.h>

#include <string>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/offload/store/commit_files.h>
#include <terrace/offload/store/store_index.h>

namespace terrace::store {

std::optional<RecordedCommit> recorded_commit(const std::filesystem::path& folder) {
  std::optional<RecordedCommit> newest;
  std::string damage;
  std::filesystem::path damaged;
  for (const auto& [file, text, unreadable, record] : CommitFiles::record_files(folder)) {
    if (!unreadable.empty()) {
      // The run that writes the store may have just removed this file: each new record replaces the one before the last.
      std::error_code error;
      if (std::filesystem::exists(std::filesystem::symlink_status(file, error)))
        damage = fmt::format("{}: {}", file.string(), unreadable), damaged = file;
      continue;
    }
    if (const auto version = other_version_of_record(text); !record && version)
      throw Error(fmt::format("{}: the store has version {}, and this program reads version {}\n  use the version of terrace "
                              "that wrote it",
                              file.string(), *version, kStoreVersionOfRows),
                  ErrorKind::refused, {.path = file.string()});
    if (!record) damage = fmt::format("{}: the record is damaged", file.string()), damaged = file;
    if (record && (!newest || record->commit.number > newest->number))
      newest = RecordedCommit{record->commit.number, record->commit.step, file};
  }
  if (!newest && !damage.empty())
    throw Error(damage + "\n  go back to an exported checkpoint, and check the disk", ErrorKind::corrupt,
                {.path = damaged.string()});
  return newest;
}

}  // namespace terrace::store
