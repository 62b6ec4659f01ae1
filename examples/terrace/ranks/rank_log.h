// Where a rank writes its lines: the first one to the user, every other one to its own files in the run directory.
//
// Owner:   the trainer; must outlive the screen that writes into it.
// Threads: the rank's. Errors: Error that names the file if it cannot be opened.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include <terrace/examples/terrace/run/screen.h>

namespace terrace::cli {

// The first rank writes trace.json, which the report shows; the other ranks of a pipeline write files beside it.
std::filesystem::path trace_file_of(const std::filesystem::path& run, std::uint32_t rank);

class RankLog {
 public:
  RankLog(const std::filesystem::path& run, int rank);
  [[nodiscard]] ScreenOptions screen(ScreenOptions options) const;  // rank r writes to rank<r>.log
  [[nodiscard]] std::string metrics_file() const;                   // rank r writes its own numbers to rank<r>.jsonl

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  int rank_;
  std::unique_ptr<std::FILE, Close> file_;  // null: the first rank
};

}  // namespace terrace::cli
