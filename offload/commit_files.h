// The commits of a chunk store as files: an index of all chunks, and a record that names it. Published in that order, so that a
// record never names what is not there, and found again, newest first, past what is damaged.
//
// Owner:   one chunk store, whose ExtentFiles outlive this. Threads: one at a time.
// Errors:  Error as ExtentFiles throws it; newest() exits with corrupt where there is nothing to go on from.
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
    bool newer_passed_over = false;      // it is of a later step than was asked for
    std::vector<std::uint64_t> numbers;  // of all whole commits up to that step
  };
  // The newest commit whose files are whole, of `not_after_step` or before.
  [[nodiscard]] Found newest(std::uint64_t not_after_step) const;
  // What a run that was killed between two calls of a commit left, and what was passed over: all but `numbers`.
  void remove_others(const std::vector<std::uint64_t>& numbers) const;

  // Data, then the index that names it, then the record that names the index. What the commit before the last one left goes
  // first: a commit takes no more room than the one before it.
  void publish(const StoreIndex& index, const Commit& commit, bool durable) const;
  void take_back(bool durable) const;  // all commits; their indices stay as litter
  void remove_all() const;

  [[nodiscard]] static bool any(const std::filesystem::path& directory);
  // Of a store that has committed once since it was made.
  [[nodiscard]] static bool only_the_first(const std::filesystem::path& directory);

 private:
  [[noreturn]] void refuse(const Found& nothing, std::uint64_t not_after_step) const;
  [[nodiscard]] std::optional<StoreIndex> load_index(const CommitRecord& record, std::string& damage) const;

  const ExtentFiles& files_;
};

}  // namespace terrace
