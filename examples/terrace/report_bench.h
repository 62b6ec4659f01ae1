// A page from what `terrace bench … --json` said: bars of the speeds with their spread, latency curves, every figure as a
// table.
//
// Threads: any. Errors: Error(Exit::usage) for a file that holds no results; Error when the page cannot be written.
#pragma once

#include <filesystem>

namespace terrace::cli {

// Beside the file, with the extension html; returns the page's path.
std::filesystem::path write_bench_report(const std::filesystem::path& json_file);

}  // namespace terrace::cli
