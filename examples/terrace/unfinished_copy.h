// The folder into which `terrace ckpt copy` copies. A file in it says that the copy is not finished, until it is: a killed copy
// can be repeated, and nothing else is taken for one.
//
// Owner:   the command; the folder is locked meanwhile.
// Threads: one.
// Errors:  Error(Exit::usage) if the folder has anything that is not of an unfinished copy.
#pragma once

#include <filesystem>

#include <terrace/core/files.h>

namespace terrace::cli {

inline constexpr const char* kUnfinishedCopy = "unfinished-copy";

class UnfinishedCopy {
 public:
  // Makes the folder, or removes what a killed copy left in it.
  explicit UnfinishedCopy(const std::filesystem::path& folder);
  ~UnfinishedCopy();  // removes an unfinished copy
  UnfinishedCopy(const UnfinishedCopy&) = delete;
  UnfinishedCopy& operator=(const UnfinishedCopy&) = delete;

  void finish();  // after run.json is there: the folder is a run

 private:
  std::filesystem::path folder_;
  FileHandle lock_;
  bool finished_ = false;
};

// Whether the folder is one: a run in it is a finished copy.
bool is_unfinished_copy(const std::filesystem::path& folder);
// An unfinished copy, or an empty folder, which a kill before the mark was made or after it was removed leaves.
bool is_left_of_a_copy(const std::filesystem::path& folder);
// Whether the folder is a finished copy and has nothing but that: no run has continued in it.
bool is_only_a_copy(const std::filesystem::path& folder);
// Removes a copy, finished or not. A kill meanwhile leaves what is_left_of_a_copy() finds, which can be removed too. A folder
// with anything else: Error(Exit::usage).
void remove_copy(const std::filesystem::path& folder);

}  // namespace terrace::cli
