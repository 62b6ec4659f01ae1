// A page from the JSON of `terrace bench … --json`: bars of the speeds with their spread, latency curves, and tables of all
// figures.
//
// Threads: any. Errors: Error(ErrorKind::refused) for a file without results; Error if the page cannot be written.
#pragma once

#include <filesystem>

namespace terrace::cli {

// Writes the page beside the file, with the extension html, and returns its path.
std::filesystem::path write_bench_report(const std::filesystem::path& json_file);

}  // namespace terrace::cli
