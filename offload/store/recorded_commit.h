// Reads the last commit of a store from its record alone, without the store's lock, so also while a run writes the store.
//
// Threads: any.
// Errors:  Error with the file: ErrorKind::corrupt if there are records and all are damaged, ErrorKind::refused for one of
//          another version.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace terrace::store {

struct RecordedCommit {
  std::uint64_t number = 0, step = 0;
  std::filesystem::path file;  // of the record
};

// `folder` is the store's, <path>/<name>. Returns nothing if the store has no commit.
std::optional<RecordedCommit> recorded_commit(const std::filesystem::path& folder);

}  // namespace terrace::store
