#include <terrace/offload/store/chunk_store.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/offload/store/commit_files.h>
#include <terrace/offload/store/extent_files.h>

namespace terrace {

bool means_the_same(const ChunkDescription& a, const ChunkDescription& b) {
  // Earlier versions wrote no ranges of packed state.
  const bool untold = a.dtype.starts_with("packed") && (a.ranges.empty() || b.ranges.empty());
  return a.kind == b.kind && a.dtype == b.dtype && a.bytes == b.bytes && (untold || a.ranges == b.ranges);
}

namespace {

bool is_state(ChunkKind kind) { return kind != ChunkKind::gradient && kind != ChunkKind::activation; }

// Offsets of the scratch file begin here, beyond every store.
constexpr std::uint64_t kScratch = 1ULL << 61;

bool is_of(const Commit& commit, const std::vector<std::string>& run_ids) {
  return run_ids.empty() || std::ranges::find(run_ids, commit.run_id) != run_ids.end();
}

[[noreturn]] void refuse_store_of_another(const ChunkStore::Options& options, const Commit& commit) {
  const auto named = [](const std::string& id) { return id.empty() ? "no id" : "the id " + id; };
  throw Error(fmt::format("{} is the store of another run: commit {} (step {}) was made by a run with {}, and this one has {}\n"
                          "  give this run a store of its own, or go back to an exported checkpoint",
                          (options.paths.front() / options.name).string(), commit.number, commit.step, named(commit.run_id),
                          named(options.run_ids.front())),
              ErrorKind::corrupt, {.path = (options.paths.front() / options.name).string()});
}

class ExtentStore final : public ChunkStore {
 public:
  static std::unique_ptr<ExtentStore> make_fresh(const Options& options) {
    std::unique_ptr<ExtentStore> store(new ExtentStore(options, store::ExtentFiles::Mode::fresh));
    if (const auto other = commit_of_another(options)) refuse_store_of_another(options, *other);
    store->commits_.remove_all();
    store->files_.make_data();
    store->files_.reserve(options.capacity_bytes, store->files_.fresh_stripes());
    return store;
  }

  static std::unique_ptr<ExtentStore> open_existing(const Options& options) {
    std::unique_ptr<ExtentStore> store(new ExtentStore(options, store::ExtentFiles::Mode::existing));
    store->load();
    // Without a scratch file opening succeeds; only a later write fails.
    if (options.read_only && options.scratch) store->scratch_ = store->files_.make_nameless();
    return store;
  }

  void describe(ChunkDescription description) override {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[description.chunk];
    if (entry.committed && !means_the_same(entry.description, description)) {
      throw std::logic_error(
          fmt::format("ChunkStore: chunk {} is committed with another description", index(description.chunk)));
    }
    entry.description = std::move(description);
  }

  bool holds(const ChunkDescription& description, std::uint64_t place_offset) const override {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(description.chunk);
    if (found == entries_.end() || !found->second.committed) return false;
    return means_the_same(found->second.description, description) && generation_of(found->second, place_offset).has_value();
  }

  std::string label(ChunkId chunk) const override {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(chunk);
    return found == entries_.end() ? std::string() : found->second.description.label;
  }

  std::uint64_t place_write(ChunkId chunk, std::uint64_t place_offset, std::uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    Entry& entry = entry_of(chunk);
    const bool state = is_state(entry.description.kind);
    if (state || !scratch_) begin_to_write();
    if (bytes != entry.description.bytes) {
      throw std::logic_error(
          fmt::format("ChunkStore: chunk {} has {} bytes, not {}", index(chunk), entry.description.bytes, bytes));
    }
    if (!state) {
      const auto offset = passing_offset(place_offset);
      forget_passing(offset, bytes);
      passing_[offset] = {chunk, bytes, {offset, 0, false}};
      return offset;
    }
    if (committing_) throw std::logic_error(fmt::format("ChunkStore: chunk {} is written during a commit", index(chunk)));
    // Copy-on-write: never overwrites the bytes of the last commit.
    std::uint64_t generation = 0;
    if (const auto committed = generation_of(entry, place_offset)) {
      if (options_.generations == 1) take_back_commit();
      generation = (*committed + 1) % options_.generations;
    }
    entry.written = Version{place_offset + generation * bytes, 0, false};
    return entry.written->offset;
  }

  void end_write(ChunkId chunk, std::uint64_t offset, std::uint64_t checksum) override {
    const std::lock_guard lock(mutex_);
    Version* const version = find(chunk, offset);
    if (!version || version->complete)
      throw std::logic_error(fmt::format("ChunkStore: end of a write of chunk {} that was not begun", index(chunk)));
    version->checksum = checksum;
    version->complete = true;
  }

  std::uint64_t place_read(ChunkId chunk, std::uint64_t place_offset) override {
    const std::lock_guard lock(mutex_);
    const Entry& entry = entry_of(chunk);
    const bool state = is_state(entry.description.kind);
    auto offset = state ? place_offset : passing_offset(place_offset);
    // The bytes written last may be in either generation.
    if (const auto& last = entry.written ? entry.written : entry.committed; state && last) offset = last->offset;
    const Version* const version = find(chunk, offset);
    if (!version || !version->complete) {
      throw std::logic_error(fmt::format("ChunkStore: chunk {} has no complete bytes at {}", index(chunk), offset));
    }
    if (state && (offset < place_offset || offset >= place_offset + entry.description.bytes * options_.generations)) {
      throw std::logic_error(fmt::format("ChunkStore: chunk {} is at {}, not at {}", index(chunk), offset, place_offset));
    }
    return offset;
  }

  void verify_read(ChunkId chunk, std::uint64_t offset, std::span<const std::byte> bytes) override {
    const auto found = checksum_of(bytes);
    Version expected;
    {
      const std::lock_guard lock(mutex_);
      const Version* const version = find(chunk, offset);
      if (!version || !version->complete) {
        throw std::logic_error(fmt::format("ChunkStore: chunk {} was never written at {}", index(chunk), offset));
      }
      expected = *version;
    }
    if (found != expected.checksum) throw_corrupt(chunk, expected, bytes.size(), found);
  }

  std::vector<Piece> pieces(std::uint64_t offset, std::uint64_t bytes) const override {
    if (offset < kScratch) return files_.stripes().pieces(offset, bytes);
    return {{static_cast<int>(files_.descriptors().size()), offset - kScratch, bytes, 0}};
  }
  std::vector<int> descriptors() const override {
    auto all = files_.descriptors();
    if (scratch_) all.push_back(scratch_.get());
    return all;
  }

  std::string describe_place(ChunkId, std::uint64_t offset) const override {
    const auto path = path_of(offset).string();
    if (offset >= kScratch) return fmt::format("disk tier, a file without a name in {}, offset {}", path, offset - kScratch);
    const auto piece = files_.stripes().pieces(offset, kPageBytes).front();
    return fmt::format("disk tier, file {}, offset {}", path, piece.offset);
  }
  std::filesystem::path path_of(std::uint64_t offset) const override {
    if (offset >= kScratch) return options_.paths.front();
    return files_.data_path(files_.stripes().pieces(offset, kPageBytes).front().file);
  }

  void commit(std::uint64_t step, const std::string& payload) override {
    if (options_.temporary) throw std::logic_error("ChunkStore: a temporary store cannot be committed");
    std::unique_lock lock(mutex_);
    if (committing_) throw std::logic_error("ChunkStore: two commits at once");
    begin_to_write();
    const std::uint64_t number = last_ ? last_->number + 1 : 1;
    const store::StoreIndex index = next_index(number);
    const Commit next{number, step, payload, options_.run_ids.empty() ? "" : options_.run_ids.front()};
    committing_ = true;
    lock.unlock();  // the run continues during the syncs
    std::exception_ptr failure;
    try {
      commits_.publish(index, next, options_.durable);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    committing_ = false;
    if (failure) fail_commit(number, step, failure);
    last_ = next;
    taken_back_ = false;
    for (auto& [id, entry] : entries_) {
      if (entry.written) entry.committed = std::exchange(entry.written, std::nullopt);
    }
  }

  std::optional<Commit> last_commit() const override {
    const std::lock_guard lock(mutex_);
    return last_;
  }

  void set_run_id(std::string id) override {
    const std::lock_guard lock(mutex_);
    options_.run_ids = {std::move(id)};
  }

  std::vector<StoredChunk> committed() const override {
    const std::lock_guard lock(mutex_);
    std::vector<StoredChunk> all;
    for (const auto& [id, entry] : entries_) {
      if (entry.committed) all.push_back({entry.description, entry.committed->offset, entry.committed->checksum});
    }
    return all;
  }

  void read_committed(const StoredChunk& chunk, std::span<std::byte> to) const override {
    if (to.size() != chunk.description.bytes) throw std::logic_error("ChunkStore: a committed chunk must be read whole");
    files_.read(chunk.offset, to);
    const auto found = checksum_of(to);
    if (found != chunk.checksum) {
      throw_corrupt(chunk.description.chunk, {chunk.offset, chunk.checksum}, to.size(), found, chunk.description.label);
    }
  }

  std::string damage() const override { return damage_; }
  void trim(std::uint64_t capacity_bytes) override {
    if (!options_.read_only) files_.trim(capacity_bytes);
  }
  std::uint64_t allocated_bytes() const override { return files_.allocated_bytes(); }
  std::uint64_t free_bytes(std::uint64_t offset) const override {
    return files_.free_bytes(offset < kScratch ? files_.stripes().pieces(offset, kPageBytes).front().file : 0);
  }

 private:
  // The bytes of one generation.
  struct Version {
    std::uint64_t offset = 0, checksum = 0;
    bool complete = true;  // false between place_write and end_write
  };
  struct Entry {
    ChunkDescription description;
    std::optional<Version> committed, written;  // versions of a state chunk; `written`: since the last commit
  };
  // Bytes of a gradient or activation. Its place changes, so it is found by place, not by chunk.
  struct Passing {
    ChunkId chunk{};
    std::uint64_t bytes = 0;
    Version version;
  };

  ExtentStore(const Options& options, store::ExtentFiles::Mode mode) : options_(options), files_(options, mode) {
    if (options_.generations == 0) throw Error("a chunk store needs at least one generation", ErrorKind::refused);
  }

  Entry& entry_of(ChunkId chunk) {
    const auto found = entries_.find(chunk);
    if (found == entries_.end()) throw std::logic_error(fmt::format("ChunkStore: chunk {} was not described", index(chunk)));
    return found->second;
  }

  Version* find(ChunkId chunk, std::uint64_t offset) {
    Entry& entry = entry_of(chunk);
    if (is_state(entry.description.kind)) {
      if (entry.written && entry.written->offset == offset) return &*entry.written;
      return entry.committed && entry.committed->offset == offset ? &*entry.committed : nullptr;
    }
    const auto found = passing_.find(offset);
    return found != passing_.end() && found->second.chunk == chunk ? &found->second.version : nullptr;
  }

  [[nodiscard]] std::uint64_t passing_offset(std::uint64_t place_offset) const {
    return scratch_ ? kScratch + place_offset : place_offset;
  }

  // Forgets the gradients and activations in this range, which is being overwritten.
  void forget_passing(std::uint64_t offset, std::uint64_t bytes) {
    auto at = passing_.lower_bound(offset);
    if (at != passing_.begin() && std::prev(at)->first + std::prev(at)->second.bytes > offset) --at;
    while (at != passing_.end() && at->first < offset + bytes) at = passing_.erase(at);
  }

  // The generation of this place that holds the committed bytes, if one does.
  [[nodiscard]] std::optional<std::uint64_t> generation_of(const Entry& entry, std::uint64_t place_offset) const {
    const auto bytes = entry.description.bytes;
    if (!entry.committed || entry.committed->offset < place_offset || bytes == 0) return std::nullopt;
    const auto distance = entry.committed->offset - place_offset;
    if (distance % bytes != 0 || distance / bytes >= options_.generations) return std::nullopt;
    return distance / bytes;
  }

  // With one generation, a write overwrites the committed bytes and so invalidates the commit. The commit's removal must be on
  // disk before the first byte is overwritten.
  void take_back_commit() {
    if (taken_back_) return;
    commits_.take_back(options_.durable);
    taken_back_ = true;
  }

  // A failed commit may still be on disk. A write now would overwrite its bytes, or those of the previous commit; and after a
  // failed sync a second sync may report success without having written anything.
  void begin_to_write() {
    if (options_.read_only)
      throw Error(
          fmt::format("{} was opened for reading{}\n  make {} writable, or raise the budgets so that nothing has to be written",
                      (options_.paths.front() / options_.name).string(),
                      options_.scratch ? ", and no file can be made beside it" : "", options_.paths.front().string()),
          ErrorKind::failed, {.code = code_of_errno(EROFS), .path = (options_.paths.front() / options_.name).string()});
    if (commit_error_) throw Error(*commit_error_);
    if (kept_until_written_.empty()) return;
    commits_.remove_others(kept_until_written_);
    if (options_.durable) files_.sync_folder();  // their bytes are overwritten next
    kept_until_written_.clear();
  }

  [[noreturn]] void fail_commit(std::uint64_t number, std::uint64_t step, const std::exception_ptr& failure) try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    commit_error_.emplace(fmt::format("commit {} (step {}) could not be made\n  {}", number, step, error.what()), error);
    throw Error(*commit_error_);
  }

  [[nodiscard]] store::StoreIndex next_index(std::uint64_t number) const {
    store::StoreIndex result{number, files_.stripes().stripe_bytes(), files_.stripes().weights(), options_.generations, {}};
    for (const auto& [id, entry] : entries_) {
      const auto& version = entry.written ? entry.written : entry.committed;
      if (!version) continue;
      if (!version->complete)
        throw std::logic_error(fmt::format("ChunkStore: commit while chunk {} is being written", index(id)));
      result.chunks.push_back({entry.description, version->offset, version->checksum});
    }
    return result;
  }

  // An older commit is used only after all its bytes have been verified, because its places may have been overwritten since.
  void load() {
    const auto found = commits_.newest(options_.not_after_step);
    if (!is_of(found.record.commit, options_.run_ids)) refuse_store_of_another(options_, found.record.commit);
    adopt(found.record, found.index);
    damage_ = found.damage.substr(std::min<std::size_t>(found.damage.size(), 3));  // without the first line's indent
    if (found.newer_damaged) {
      options_.io.log.warn(fmt::format("the newest commit is damaged, going back to commit {} (step {}):{}", last_->number,
                                       last_->step, found.damage));
    }
    if (!found.newer_damaged && !found.damage.empty()) {
      options_.io.log.warn(fmt::format("commit {} (step {}) is intact, but files beside it are damaged: check the disk{}",
                                       last_->number, last_->step, found.damage));
    }
    if (found.newer_damaged || found.newer_passed_over) verify_all();
    if (options_.read_only) return;
    commits_.repair(found.repairs, options_.durable);
    // Skipped commits stay until the first write, so that a store can be inspected without changing it.
    if (found.newer_passed_over) {
      kept_until_written_ = found.numbers;
    } else if (found.damage.empty()) {
      commits_.remove_others(found.numbers);
    }
  }

  void adopt(const store::CommitRecord& record, const store::StoreIndex& index) {
    if (index.stripe_weights.size() != options_.paths.size()) {
      throw Error(fmt::format("{}: the store was written with {} paths, but {} are given\n  give the same paths",
                              options_.paths.front().string(), index.stripe_weights.size(), options_.paths.size()),
                  ErrorKind::refused);
    }
    options_.generations = std::max(options_.generations, index.generations);
    files_.reserve(options_.read_only ? kUnlimited : options_.capacity_bytes,
                   store::Stripes(index.stripe_bytes, index.stripe_weights));
    last_ = record.commit;
    for (const auto& chunk : index.chunks) {
      entries_[chunk.description.chunk] = {chunk.description, Version{chunk.offset, chunk.checksum}, std::nullopt};
    }
  }

  void verify_all() const {
    std::vector<std::byte> bytes;
    for (const auto& chunk : committed()) {
      bytes.resize(chunk.description.bytes);
      read_committed(chunk, bytes);
    }
  }

  [[noreturn]] void throw_corrupt(ChunkId chunk, const Version& expected, std::uint64_t bytes, std::uint64_t found,
                                  std::string chunk_label = {}) const {
    if (chunk_label.empty()) chunk_label = label(chunk);
    throw Error(fmt::format("chunk {}{} is not what was written\n"
                            "  {}, {} bytes: checksum {:016x}, expected {:016x}\n"
                            "  go back to an exported checkpoint, and check the disk",
                            index(chunk), chunk_label.empty() ? "" : " (" + chunk_label + ")",
                            describe_place(chunk, expected.offset), bytes, found, expected.checksum),
                ErrorKind::corrupt,
                {.path = path_of(expected.offset).string(), .object = fmt::format("chunk {}", index(chunk))});
  }

  Options options_;
  store::ExtentFiles files_;
  files::FileHandle scratch_;  // empty: gradients and activations are in the store's files, too
  store::CommitFiles commits_{files_};
  std::string damage_;
  mutable std::mutex mutex_;
  std::map<ChunkId, Entry> entries_;
  std::map<std::uint64_t, Passing> passing_;  // by offset, disjoint
  std::optional<Commit> last_;
  std::vector<std::uint64_t> kept_until_written_;  // the first write removes all other commits; empty: done
  bool taken_back_ = false;                        // a write to the only generation has removed the last commit
  bool committing_ = false;
  std::optional<Error> commit_error_;  // of the commit that failed, if one did
};

}  // namespace

std::unique_ptr<ChunkStore> ChunkStore::create(const Options& options) { return ExtentStore::make_fresh(options); }
std::unique_ptr<ChunkStore> ChunkStore::open(const Options& options) { return ExtentStore::open_existing(options); }

bool ChunkStore::has_commit(const Options& options) {
  if (options.paths.empty()) return false;
  return store::CommitFiles::any(options.paths.front() / options.name);
}

std::optional<Commit> ChunkStore::commit_of_another(const Options& options) {
  if (options.run_ids.empty() || options.temporary || options.paths.empty()) return std::nullopt;
  auto newest = store::CommitFiles::newest_record(options.paths.front() / options.name);
  return newest && !is_of(*newest, options.run_ids) ? newest : std::nullopt;
}

bool ChunkStore::had_commit(const Options& options) {
  return has_commit(options) ||
         (!options.paths.empty() && store::CommitFiles::later_index(options.paths.front() / options.name));
}

}  // namespace terrace
