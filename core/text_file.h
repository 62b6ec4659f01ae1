// A file that somebody wrote by hand, as text: settings, profiles, orders.
//
// Threads: any.
// Errors:  read_text_file() throws Error with the reason alone, "No such file or directory (errno 2)": the caller says what the
//          file is for.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace terrace {

// All of it, from a pipe as well. A folder, a read that fails and more than 64 MiB are errors.
std::string read_text_file(const std::filesystem::path& file);

bool is_utf8(std::string_view text);

}  // namespace terrace
