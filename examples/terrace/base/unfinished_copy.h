// The folder into which `terrace ckpt copy` copies. Until the copy is finished, a file in it marks it as unfinished: a killed
// copy can be repeated, and no other folder is taken for a copy.
//
// Owner:   the command; the folder is locked meanwhile.
// Threads: one.
// Errors:  Error(ErrorKind::refused) if the folder has anything that no unfinished copy has.
#pragma once

#include <filesystem>

#include <terrace/core/base/files.h>

namespace terrace::cli {

inline constexpr const char* kUnfinishedCopy = "unfinished-copy";

class UnfinishedCopy {
 public:
  // Makes the folder, or removes what a killed copy left in it.
  explicit UnfinishedCopy(const std::filesystem::path& folder);
  ~UnfinishedCopy();  // removes an unfinished copy
  UnfinishedCopy(const UnfinishedCopy&) = delete;
  UnfinishedCopy& operator=(const UnfinishedCopy&) = delete;

  void finish();  // called after run.json is written: the folder is a run

 private:
  std::filesystem::path folder_;
  files::FileHandle lock_;
  bool finished_ = false;
};

// Whether the folder has an unfinished copy. With run.json in it, the copy is finished.
bool is_unfinished_copy(const std::filesystem::path& folder);
// Whether it has an unfinished copy or is empty, as a kill leaves it before the mark is made or after it is removed.
bool is_left_of_a_copy(const std::filesystem::path& folder);
// Whether the folder has a finished copy and nothing else, so that no run has continued in it.
bool is_only_a_copy(const std::filesystem::path& folder);
// Removes the mark that a power cut brought back after the copy was finished, if there is one.
void remove_mark_of_finished(const std::filesystem::path& folder);
// Removes a copy, finished or not. A kill meanwhile leaves a folder that is_left_of_a_copy() finds, and that can be removed
// again. Throws Error(ErrorKind::refused) if the folder has anything else.
void remove_copy(const std::filesystem::path& folder);

}  // namespace terrace::cli
