// A file whose name alone says that a command has not finished in a folder. It is made without a temporary file, so that a kill
// leaves an empty folder or a marked one. Its removal is synced to disk before the command reports its end, so that no power
// loss brings it back.
//
// Threads: any. Errors: Error with the folder, the reason and the remedy.
#pragma once

#include <filesystem>
#include <string_view>

namespace terrace::cli {

bool is_marked(const std::filesystem::path& folder, const char* mark);
// Marks the folder, unless it is marked already. `text` is for a user who opens the file.
void mark_folder(const std::filesystem::path& folder, const char* mark, std::string_view text);
void unmark_folder(const std::filesystem::path& folder, const char* mark);

}  // namespace terrace::cli
