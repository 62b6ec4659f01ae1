// Text files that are read and written whole: settings, profiles, schedules, a run's records.
//
// Threads: any.
// Errors:  Error with only the reason, "No such file or directory (errno 2)": the caller adds what the file is for and what to
//          do.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// The whole file, also from a pipe. A folder, a failed read and more than 64 MiB are errors.
std::string read_text_file(const std::filesystem::path& file);

// Writes a temporary file beside it and renames it: readers see the whole old file or the whole new one, with Durable::yes also
// after a power loss. A failure keeps the old file and removes the temporary one. A link to a file, and a target that is not a
// regular file (a pipe, /dev/stdout), is written in place.
enum class Durable : bool { no, yes };
void write_text_file(const std::filesystem::path& file, std::string_view text, Durable durable = Durable::no);

// Flushes a file or a folder to the disk.
void sync_to_disk(const std::filesystem::path& path);

bool is_utf8(std::string_view text);
std::vector<std::string> lines_of(const std::string& text);

}  // namespace terrace
