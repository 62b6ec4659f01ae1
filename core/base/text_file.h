// Text files that are read and written whole: settings, profiles, schedules, a run's records.
//
// Threads: any.
// Errors:  Error with errno and path. Its text has only the reason, "No such file or directory (errno 2)": the caller adds the
//          purpose of the file and what to do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/core/base/files.h>

namespace terrace {

inline constexpr std::uint64_t kMostTextBytes = std::uint64_t{64} << 20;  // more than any valid file

// Reads the whole file, or a pipe of the shell (/dev/stdin). Any other file that is not regular, a failed read and a longer
// text are errors.
std::string read_text_file(const std::filesystem::path& file, std::uint64_t most_bytes = kMostTextBytes);

// Reads a regular file line by line. `take` gets each line without its newline, and whether it had one; it returns false to
// stop.
void read_lines(const std::filesystem::path& file, const std::function<bool(const std::string& line, bool complete)>& take);

// Writes a file of terrace's own as a NewFile, so that a failure keeps the old file. A link of that name is replaced and not
// followed; anything else that is not a regular file is an error.
void replace_text_file(const std::filesystem::path& file, std::string_view text, files::Durable durable = files::Durable::no);

// Writes a file that the user named: as replace_text_file(), except that a link, or a target that is not a regular file (a
// pipe, /dev/stdout), is written in place.
void write_text_file(const std::filesystem::path& file, std::string_view text);

bool is_utf8(std::string_view text);
std::vector<std::string> lines_of(const std::string& text);

}  // namespace terrace
