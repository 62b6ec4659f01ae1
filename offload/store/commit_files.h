// The commits of a chunk store as files: an index of all chunks, and a record that names the index. They are written in that
// order, so that a record never names a missing index. Searched newest first; damaged commits are skipped.
//
// Each file is kept twice, `commit.1` and `commit.1.copy`, because one flipped bit in the only one would cost the run. One
// intact copy suffices; if the copies are of different commits, the newer one counts.
//
// Owner:   one chunk store, whose ExtentFiles outlive this. Threads: one at a time.
// Errors:  Error as ExtentFiles throws it. newest() throws Error(ErrorKind::corrupt) if there is no usable commit,
//          Error(ErrorKind::refused) if any commit is of another version, and the read error if an unreadable file may belong
//          to the newest commit, because another attempt may succeed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <terrace/offload/store/extent_files.h>
#include <terrace/offload/store/store_index.h>

namespace terrace::store {

class CommitFiles {
 public:
  explicit CommitFiles(const ExtentFiles& files) : files_(files) {}

  struct Repair {
    std::string name, text;
  };
  struct Found {
    CommitRecord record;
    StoreIndex index;
    std::string damage;  // a line for each damaged file, each with an indent of two; empty: none
    bool newer_damaged = false;
    bool newer_passed_over = false;      // a commit was skipped because its step is later than requested
    std::vector<std::uint64_t> numbers;  // of all intact commits up to `not_after_step`
    std::vector<Repair> repairs;         // the copies of their files that are damaged or missing
  };
  // The newest commit with intact files, of step `not_after_step` or earlier.
  [[nodiscard]] Found newest(std::uint64_t not_after_step) const;
  // Writes missing and damaged copies again. Failing to do so is a warning: the next commit writes new ones.
  void repair(const std::vector<Repair>& repairs, bool durable) const;
  // Removes all commits except `numbers`: leftovers of a run that was killed during a commit, and skipped commits.
  void remove_others(const std::vector<std::uint64_t>& numbers) const;

  // Syncs the data, then writes the index, then the record that names the index. Before that, removes the files of the commit
  // before the last one, so that the commits together need no more room than before.
  void publish(const StoreIndex& index, const Commit& commit, bool durable) const;
  void take_back(bool durable) const;  // removes the records of all commits; their indices stay as unused files
  void remove_all() const;

  [[nodiscard]] static bool any(const std::filesystem::path& directory);
  // True if there is an index after the first. (The first index alone may come from a commit that never finished.)
  [[nodiscard]] static bool later_index(const std::filesystem::path& directory);
  // The four record files, read without the store's lock.
  struct RecordFile {
    std::filesystem::path path;
    std::string text = {}, unreadable = {};   // unreadable: why, also if the file is missing; then without a text
    std::optional<CommitRecord> record = {};  // none: unreadable, damaged, or of another version
  };
  [[nodiscard]] static std::vector<RecordFile> record_files(const std::filesystem::path& directory);
  // The commit of the newest readable record, even if its index cannot be read.
  [[nodiscard]] static std::optional<Commit> newest_record(const std::filesystem::path& directory);
  // True if the store has committed exactly once.
  [[nodiscard]] static bool only_the_first(const std::filesystem::path& directory);

 private:
  struct Lost;
  struct Copies;
  [[nodiscard]] Copies read(const std::string& name) const;
  [[nodiscard]] std::optional<CommitRecord> load_record(std::uint64_t slot, std::vector<Lost>& lost,
                                                        std::vector<Repair>& repairs) const;
  [[nodiscard]] std::optional<StoreIndex> load_index(const CommitRecord& record, std::vector<Lost>& lost,
                                                     std::vector<Repair>& repairs) const;
  [[nodiscard]] bool is_newer(const Lost& lost, std::uint64_t number) const;
  void demand_version(const std::string& name, std::optional<std::uint64_t> other) const;
  void remove_copies(const std::string& name) const;
  [[noreturn]] void refuse(const Found& nothing, std::uint64_t not_after_step) const;

  const ExtentFiles& files_;
};

}  // namespace terrace::store
