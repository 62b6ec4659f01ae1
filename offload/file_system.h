// What kind of file system a path is on, and what speaks against it as a disk tier.
//
// Threads: any. Errors: none; an unreadable path is an unknown file system.
#pragma once

#include <filesystem>
#include <string>

namespace terrace {

struct FileSystem {
  std::string name;       // "ext4"; "file system 0x…" when it is none of the known ones
  std::string objection;  // why it is no disk tier; empty when it is one
};
FileSystem file_system_of(const std::filesystem::path& path);

}  // namespace terrace
