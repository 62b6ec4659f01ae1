// The shell of report.html: style sheet and head. No external resources.
//
// Threads: any. Errors: none.
#pragma once

#include <string>
#include <string_view>

namespace terrace::cli {

std::string report_page(std::string_view title, const std::string& body);

}  // namespace terrace::cli
