// Operations on folders: making files without a name in one, and making a folder's own name durable.
//
// Threads: any.
// Errors:  Error. If a folder cannot be made, its text has only the reason; if one cannot be synced, it names the folder.
#pragma once

#include <filesystem>
#include <vector>

#include <terrace/core/base/files.h>

namespace terrace::files {

// Makes a file without a name, for reading and writing: it disappears when its last descriptor is closed. Returns a descriptor
// or a negative errno.
int create_nameless(const std::filesystem::path& folder, int flags = 0);

// A folder and all folders above it on its file system, as far as they may be read. A new folder's name survives a power loss
// only when each of them is synced.
std::vector<FileHandle> with_folders_above(const std::filesystem::path& folder);
void sync_with_folders_above(const std::filesystem::path& folder);
// Makes a folder and the missing folders above it, so that their names survive a power loss.
void make_folders(const std::filesystem::path& folder);

}  // namespace terrace::files
