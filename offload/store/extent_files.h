// The files of a chunk store: on each path one preallocated data file, striped, in a separate, locked directory.
//
// Owner:   one chunk store. Threads: pieces(), sync() and read() from any; the rest at construction.
// Errors:  Error that names path, operation and errno. Refused are a directory in use by another process, a symbolic link in
//          place of a file, and too little free space.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <terrace/core/base/files.h>
#include <terrace/offload/store/chunk_store.h>
#include <terrace/offload/store/stripes.h>

namespace terrace::store {

class ExtentFiles {
 public:
  // Locks the directories of all paths. The files of an existing store are opened, too; a fresh one has none before
  // make_data().
  enum class Mode { fresh, existing };
  ExtentFiles(const ChunkStore::Options& options, Mode mode);
  ~ExtentFiles();
  ExtentFiles(const ExtentFiles&) = delete;
  ExtentFiles& operator=(const ExtentFiles&) = delete;

  [[nodiscard]] const Log& log() const { return options_.io.log; }
  // An unnamed file beside the store, for reading and writing; empty if it cannot be made there.
  [[nodiscard]] files::FileHandle make_nameless() const;
  // Replaces the data files of an earlier store by empty ones.
  void make_data();
  // Sets capacity and stripes: those of a fresh store come from its options, those of an existing one from its index.
  void reserve(std::uint64_t capacity_bytes, Stripes stripes);
  [[nodiscard]] Stripes fresh_stripes() const;  // measures the speed of several paths if the store is large
  void trim(std::uint64_t capacity_bytes) const;

  [[nodiscard]] const Stripes& stripes() const { return stripes_; }
  [[nodiscard]] std::vector<int> descriptors() const;
  [[nodiscard]] std::filesystem::path data_path(int file) const;
  [[nodiscard]] std::uint64_t allocated_bytes() const;
  [[nodiscard]] std::uint64_t free_bytes(int file) const;  // on the file's file system
  void read(std::uint64_t offset, std::span<std::byte> to) const;
  void sync() const;  // makes the data durable

  // Small files beside the first data file, all with the same text. Each is replaced atomically: after a power loss, either the
  // old file or the new one is there.
  void write_small(std::span<const std::string> names, const std::string& text, bool durable) const;
  enum class Found { absent, read };
  Found read_small(const std::string& name, std::string& text) const;
  void remove_small(const std::string& name) const;
  void sync_folder() const;                              // makes removals durable
  [[nodiscard]] std::vector<std::string> names() const;  // of the first directory, ordered
  [[nodiscard]] std::filesystem::path small_path(const std::string& name) const;

 private:
  struct Place {
    std::filesystem::path directory;
    files::FileHandle directory_handle, lock, data;
  };
  bool open_directory(Place& place, const std::filesystem::path& path, Mode mode) const;
  bool lock_directory(Place& place, Mode mode) const;  // false: it was removed meanwhile
  void demand_another(const Place& place) const;
  void open_data(Place& place, int flags) const;
  void sync_new_names() const;
  void reserve_file(const Place& place, std::uint64_t bytes) const;

  const ChunkStore::Options options_;
  const std::shared_ptr<io::FileOps> ops_;
  Stripes stripes_;
  std::vector<Place> places_;
};

}  // namespace terrace::store
