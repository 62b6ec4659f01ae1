// What is done in a folder beside making files with names: making one without a name, and making the folder's own name durable.
//
// Threads: any.
// Errors:  Error: only the reason where a folder cannot be made; what cannot be synced is named.
#pragma once

#include <filesystem>
#include <vector>

#include <terrace/core/files.h>

namespace terrace {

// Makes a file without a name, for reading and writing: it is gone with its last descriptor. Returns a descriptor or a negative
// errno.
int create_nameless(const std::filesystem::path& folder, int flags = 0);

// A folder and all above it on its file system, as far as they may be read. Only when each of them is synced, a new folder's
// name survives a power loss.
std::vector<FileHandle> with_folders_above(const std::filesystem::path& folder);
void sync_with_folders_above(const std::filesystem::path& folder);
// Makes a folder, and those above it that are missing, so that their names survive a power loss.
void make_folders(const std::filesystem::path& folder);

}  // namespace terrace
