// Opening and making files under names where anything may be found: after a disk error or an attack by another user, a record
// may be a named pipe, and a temporary file a link to somewhere else.
//
// Threads: any.
// Errors:  Error with errno and path. Its text has only the reason: the caller adds what the file is for and what to do.
#pragma once

#include <fcntl.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace terrace::files {

// An open file descriptor, closed with its owner.
class FileHandle {
 public:
  FileHandle() = default;
  explicit FileHandle(int descriptor) : descriptor_(descriptor) {}
  FileHandle(FileHandle&& other) noexcept : descriptor_(other.release()) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~FileHandle();
  [[nodiscard]] int get() const { return descriptor_; }
  [[nodiscard]] int release() { return std::exchange(descriptor_, -1); }
  explicit operator bool() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

// Opens a file without ever waiting for the other end of a pipe. Anything but a regular file is Error(ErrorKind::corrupt). If
// the system refuses, the handle is empty and errno gives the reason. `unnamed_pipe`: accepts the pipe of a shell (/dev/stdin,
// <(…)), which has a writer.
enum class UnnamedPipe : bool { refused, accepted };
FileHandle open_regular(const std::filesystem::path& file, int flags, int directory = AT_FDCWD, unsigned mode = 0,
                        UnnamedPipe unnamed_pipe = UnnamedPipe::refused);

// Makes a new, empty file for writing; it never follows a link. A file of that name, left by an earlier process, is removed.
// Returns a descriptor or a negative errno: -EEXIST if the name belongs to something other than a file.
int create_temporary(int directory, const std::string& name, unsigned mode, int flags = 0);

// Writes all bytes, or throws; the error has the path `file`.
void write_all(int descriptor, std::string_view text, const std::filesystem::path& file = {});

// A file that gets its name when it is complete: a reader sees the whole old file or the whole new one. It is written beside it
// as NAME.tmp, which is removed if it is not finished.
inline constexpr std::string_view kTemporaryEnding = ".tmp";
enum class Durable : bool { no, yes };
class NewFile {
 public:
  explicit NewFile(std::filesystem::path file, unsigned mode = 0666, int flags = 0);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  [[nodiscard]] int get() const { return handle_.get(); }
  [[nodiscard]] const std::filesystem::path& temporary() const { return temporary_; }
  void write(std::string_view text) { write_all(get(), text, file_); }
  // With Durable::yes, the file and its name also survive a power loss. The descriptor stays open until release or the end.
  void finish(Durable durable);
  [[nodiscard]] FileHandle release() { return std::move(handle_); }

 private:
  std::filesystem::path file_, temporary_;
  FileHandle handle_;
  bool finished_ = false;
};
// The final name of a NewFile's temporary file; any other name is returned as it is.
inline std::string_view finished_name(std::string_view name) {
  return name.ends_with(kTemporaryEnding) ? name.substr(0, name.size() - kTemporaryEnding.size()) : name;
}

// Flushes a file or a folder to the disk.
void sync_to_disk(const std::filesystem::path& path);

// The entries of a folder, ordered by name. The error names the folder.
std::vector<std::filesystem::directory_entry> entries_of(const std::filesystem::path& folder);
// Removes a file, a link or an empty folder, if it exists. The error names it.
void remove_path(const std::filesystem::path& path);

}  // namespace terrace::files
