// Records every request of a run to its disk, in order, and creates the states that a power loss at any moment could leave.
//
// A written page that was not synced is either present or not, independently of all others. The same holds for the content of a
// file and for a name in its folder. Only synced data is certain. Real file systems promise more.
//
// Owner:   the test; shared by the engine and the file operations of one run. Threads: any.
#pragma once

#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/offload/io/io_engine.h>
#include <terrace/tests/support/kernel_files.h>

namespace terrace::test {

class CrashJournal {
 public:
  using Bytes = std::vector<std::byte>;
  struct WriteBegun {
    std::uint64_t id = 0, offset = 0;
    Bytes bytes;
  };
  struct WriteEnded {
    std::uint64_t id = 0;
  };
  struct DataSynced {};
  struct FileMade {
    std::uint64_t file = 0;  // a new number for each file, even if the name is reused
    std::string name;
  };
  struct FileWritten {
    std::uint64_t file = 0;
    Bytes bytes;
  };
  struct FileSynced {
    std::uint64_t file = 0;
  };
  struct Renamed {
    std::string from, to;
  };
  struct Removed {
    std::string name;
  };
  struct FolderSynced {};
  using Event =
      std::variant<WriteBegun, WriteEnded, DataSynced, FileMade, FileWritten, FileSynced, Renamed, Removed, FolderSynced>;

  void add(Event event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  [[nodiscard]] std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return events_.size();
  }

  [[nodiscard]] bool is_end_of_write(std::size_t i) const {
    return i < events_.size() && std::holds_alternative<WriteEnded>(events_[i]);
  }

  [[nodiscard]] bool is_folder_sync(std::size_t i) const {
    return i < events_.size() && std::holds_alternative<FolderSynced>(events_[i]);
  }

  // Writes into a folder what remains after a power loss before event `end`; `seed` decides everything uncertain. `data_bytes`
  // is the size of the data file, which was allocated before any write.
  void leave(std::size_t end, std::uint64_t seed, std::uint64_t data_bytes, const std::filesystem::path& folder) const;

 private:
  mutable std::mutex mutex_;
  std::vector<Event> events_;
};

inline void CrashJournal::leave(std::size_t end, std::uint64_t seed, std::uint64_t data_bytes,
                                const std::filesystem::path& folder) const {
  std::mt19937_64 random(seed);
  Bytes data(data_bytes);  // durable
  struct Pending {
    const WriteBegun* write = nullptr;
    bool ended = false;
  };
  std::vector<Pending> pending;  // in order, not synced yet
  std::map<std::uint64_t, Bytes> contents;
  std::set<std::uint64_t> synced;
  using Folder = std::map<std::string, std::uint64_t>;
  Folder names;                                            // durable
  std::vector<std::function<void(Folder&)>> name_changes;  // not synced yet

  const auto write = [&data](const WriteBegun& w, const std::function<bool()>& page_is_there) {
    for (std::uint64_t at = 0; at < w.bytes.size(); at += kPageBytes)
      if (page_is_there()) std::memcpy(data.data() + w.offset + at, w.bytes.data() + at, kPageBytes);
  };
  for (std::size_t i = 0; i < end; ++i) {
    const auto& event = events_[i];
    if (const auto* begun = std::get_if<WriteBegun>(&event)) {
      pending.push_back({begun, false});
    } else if (const auto* ended = std::get_if<WriteEnded>(&event)) {
      for (auto& p : pending)
        if (p.write->id == ended->id) p.ended = true;
    } else if (std::holds_alternative<DataSynced>(event)) {
      std::erase_if(pending, [&](const Pending& p) {
        if (p.ended) write(*p.write, [] { return true; });
        return p.ended;
      });
    } else if (const auto* made = std::get_if<FileMade>(&event)) {
      contents[made->file] = {};
      name_changes.emplace_back([made](Folder& f) { f[made->name] = made->file; });
    } else if (const auto* written = std::get_if<FileWritten>(&event)) {
      auto& content = contents[written->file];
      content.insert(content.end(), written->bytes.begin(), written->bytes.end());
    } else if (const auto* file = std::get_if<FileSynced>(&event)) {
      synced.insert(file->file);
    } else if (const auto* renamed = std::get_if<Renamed>(&event)) {
      name_changes.emplace_back([renamed](Folder& f) {
        const auto found = f.find(renamed->from);
        if (found == f.end()) return;
        f[renamed->to] = found->second;
        f.erase(renamed->from);
      });
    } else if (const auto* removed = std::get_if<Removed>(&event)) {
      name_changes.emplace_back([removed](Folder& f) { f.erase(removed->name); });
    } else {
      for (const auto& change : name_changes) change(names);
      name_changes.clear();
    }
  }
  const auto maybe = [&random] { return random() % 2 == 0; };
  for (const auto& p : pending) write(*p.write, maybe);
  for (const auto& change : name_changes)
    if (maybe()) change(names);

  std::filesystem::create_directories(folder);
  const auto put = [&](const std::string& name, const Bytes& bytes, std::size_t count) {
    std::ofstream(folder / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(count));
  };
  put("data", data, data.size());
  for (const auto& [name, file] : names) {
    const auto& content = contents[file];
    put(name, content, synced.contains(file) || maybe() ? content.size() : random() % (content.size() + 1));
  }
}

// The kernel's file operations without its syncs: the journal decides what is durable.
class JournalFiles final : public KernelFiles {
 public:
  explicit JournalFiles(std::shared_ptr<CrashJournal> journal) : journal_(std::move(journal)) {}

  int create(int directory, const std::string& name) override {
    const int descriptor = kernel_->create(directory, name);
    const std::lock_guard lock(mutex_);
    files_[descriptor] = ++last_file_;
    journal_->add(CrashJournal::FileMade{last_file_, name});
    return descriptor;
  }
  std::int64_t write(int file, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(mutex_);
    journal_->add(CrashJournal::FileWritten{files_.at(file), {bytes.begin(), bytes.end()}});
    return kernel_->write(file, bytes);
  }
  int sync(int file) override {
    struct stat info {};
    if (::fstat(file, &info) != 0) return -errno;
    const std::lock_guard lock(mutex_);
    const auto small = files_.find(file);
    if (S_ISDIR(info.st_mode)) {
      journal_->add(CrashJournal::FolderSynced{});
    } else if (small != files_.end()) {
      journal_->add(CrashJournal::FileSynced{small->second});
      files_.erase(small);  // it is closed next, and the data file may get its number
    } else {
      journal_->add(CrashJournal::DataSynced{});
    }
    return 0;
  }
  int rename(int directory, const std::string& from, const std::string& to) override {
    journal_->add(CrashJournal::Renamed{from, to});
    return kernel_->rename(directory, from, to);
  }
  int remove(int directory, const std::string& name) override {
    journal_->add(CrashJournal::Removed{name});
    return kernel_->remove(directory, name);
  }

 private:
  const std::shared_ptr<CrashJournal> journal_;
  std::mutex mutex_;
  std::map<int, std::uint64_t> files_;  // open small files
  std::uint64_t last_file_ = 0;
};

// An engine that reports its writes to the journal. From the beginning of a write, any part of it may be on the disk; after its
// end, a sync makes it durable.
class JournalEngine final : public IoEngine {
 public:
  JournalEngine(std::unique_ptr<IoEngine> inner, std::shared_ptr<CrashJournal> journal)
      : inner_(std::move(inner)), journal_(std::move(journal)) {}

  void submit(std::span<IoRequest* const> requests) override {
    for (IoRequest* const request : requests) {
      if (request->op != IoRequest::Op::write) continue;
      const auto id = ++last_;
      journal_->add(CrashJournal::WriteBegun{id, request->offset, {request->buffer, request->buffer + request->bytes}});
      request->done = [journal = journal_, id, done = std::move(request->done)](IoRequest& ended, int error_number) {
        journal->add(CrashJournal::WriteEnded{id});
        done(ended, error_number);
      };
    }
    inner_->submit(requests);
  }
  std::size_t poll(std::chrono::nanoseconds wait) override { return inner_->poll(wait); }
  void wake() override { inner_->wake(); }
  [[nodiscard]] std::size_t in_flight() const override { return inner_->in_flight(); }
  [[nodiscard]] std::string name() const override { return inner_->name(); }

 private:
  const std::unique_ptr<IoEngine> inner_;
  const std::shared_ptr<CrashJournal> journal_;
  std::uint64_t last_ = 0;
};

}  // namespace terrace::test
