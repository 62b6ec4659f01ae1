// One self-contained page about several runs: their curves over each other, and tables of what differs.
//
// Threads: any. Errors: Error if a run has no metrics, or the page cannot be written.
#pragma once

#include <filesystem>
#include <vector>

namespace terrace::cli {

inline constexpr const char* kComparisonFile = "comparison.html";  // in the directory of the first run

// Reads metrics.jsonl and config.toml of each run; returns the page's path.
std::filesystem::path write_comparison(const std::vector<std::filesystem::path>& runs);

}  // namespace terrace::cli
