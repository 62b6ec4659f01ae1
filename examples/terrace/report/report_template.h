// The shell of report.html: style sheet and head. No external resources.
//
// Threads: any. Errors: Error if a page cannot be written; an incomplete page is never left.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace terrace::cli {

std::string report_page(std::string_view title, const std::string& body);
// `about`: the argument of terrace report, for messages.
void write_page(const std::filesystem::path& file, const std::string& page, const std::filesystem::path& about);

}  // namespace terrace::cli
