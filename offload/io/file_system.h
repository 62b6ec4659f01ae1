// The kind of file system that a path is on, and why it is unsuitable as a disk tier.
//
// Threads: any. Errors: none; an unreadable path is an unknown file system.
#pragma once

#include <filesystem>
#include <string>

namespace terrace::io {

struct FileSystem {
  std::string name;       // "ext4"; "file system 0x…" for an unknown one
  std::string objection;  // why it is unsuitable; empty if it is suitable
};
FileSystem file_system_of(const std::filesystem::path& path);

}  // namespace terrace::io
