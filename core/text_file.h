// Files that are read and written whole, as text: settings, profiles, orders, what a run tells of itself.
//
// Threads: any.
// Errors:  Error with the reason alone, "No such file or directory (errno 2)": the caller says what the file is for, and how to
//          go on.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// All of it, from a pipe as well. A folder, a read that fails and more than 64 MiB are errors.
std::string read_text_file(const std::filesystem::path& file);

// Written beside it and renamed: whoever reads sees the old file or the new one, whole; with Durable::yes after a power loss
// too. What fails leaves the old one, and nothing beside it. Through a link to a file, and to what is no file (a pipe,
// /dev/stdout), it is written in place.
enum class Durable : bool { no, yes };
void write_text_file(const std::filesystem::path& file, std::string_view text, Durable durable = Durable::no);

// A file or a folder, onto the disk.
void sync_to_disk(const std::filesystem::path& path);

bool is_utf8(std::string_view text);
std::vector<std::string> lines_of(const std::string& text);

}  // namespace terrace
