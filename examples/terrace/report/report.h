// report.html: one self-contained page about a run, from the files in its directory. The page says which files are missing.
//
// Threads: any. Errors: Error if the directory has no metrics, or the page cannot be written.
#pragma once

#include <filesystem>
#include <string>

namespace terrace::cli {

inline constexpr const char* kPlanFile = "plan.json";
inline constexpr const char* kTraceFile = "trace.json";
inline constexpr const char* kReportFile = "report.html";

// Reads metrics.jsonl, plan.json, trace.json and config.toml; returns the page's path.
std::filesystem::path write_report(const std::filesystem::path& run_dir);

}  // namespace terrace::cli
