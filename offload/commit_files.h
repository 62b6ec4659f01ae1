// The commits of a chunk store as files: an index of all chunks, and a record that names the index. They are written in that
// order, so that a record never names a missing index. Searched newest first; damaged commits are skipped.
//
// Owner:   one chunk store, whose ExtentFiles outlive this. Threads: one at a time.
// Errors:  Error as ExtentFiles throws it; newest() throws Error(Exit::corrupt) if there is no usable commit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <terrace/offload/extent_files.h>
#include <terrace/offload/store_index.h>

namespace terrace {

class CommitFiles {
 public:
  explicit CommitFiles(const ExtentFiles& files) : files_(files) {}

  struct Found {
    CommitRecord record;
    StoreIndex index;
    std::string damage;  // a line for each damaged file, each with an indent of two; empty: none
    bool newer_damaged = false;
    bool newer_passed_over = false;      // a commit was skipped because its step is later than requested
    std::vector<std::uint64_t> numbers;  // of all intact commits up to that step
  };
  // The newest commit with intact files, of step `not_after_step` or earlier.
  [[nodiscard]] Found newest(std::uint64_t not_after_step) const;
  // Removes all commits except `numbers`: leftovers of a run that was killed during a commit, and skipped commits.
  void remove_others(const std::vector<std::uint64_t>& numbers) const;

  // Writes the data, then the index of it, then the record of the index. First removes the files of the commit before the last
  // one, so that the commits together need no more room than before.
  void publish(const StoreIndex& index, const Commit& commit, bool durable) const;
  void take_back(bool durable) const;  // removes the records of all commits; their indices stay as unused files
  void remove_all() const;

  [[nodiscard]] static bool any(const std::filesystem::path& directory);
  // Whether there is an index other than the first, which a commit that was never finished may leave.
  [[nodiscard]] static bool later_index(const std::filesystem::path& directory);
  // Whether the store has committed exactly once.
  [[nodiscard]] static bool only_the_first(const std::filesystem::path& directory);

 private:
  [[noreturn]] void refuse(const Found& nothing, std::uint64_t not_after_step) const;
  [[nodiscard]] std::optional<StoreIndex> load_index(const CommitRecord& record, std::string& damage) const;

  const ExtentFiles& files_;
};

}  // namespace terrace
