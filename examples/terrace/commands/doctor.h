// terrace doctor: examines this machine, and says what terrace can use and how to correct problems.
//
// Threads: one. Errors: problems are findings, not exceptions. It writes and removes one page-sized file under every disk path.
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

struct Finding {
  enum class Status { ok, warn, fail };  // fail: something required is missing
  Status status = Status::ok;
  std::string name;  // "io_uring"
  std::string text;  // what was found
  std::string mend;  // what to do about it; empty if nothing is wrong
};
std::string_view name_of(Finding::Status status);  // "OK", "WARN", "FAIL"

std::vector<Finding> examine_machine(const RunConfig& config);
std::vector<Finding> examine_path(const std::filesystem::path& path);  // one folder of the disk tier

// Prints the findings, with config.json as one JSON object. Returns the exit code: 0, or 4 if something required is missing.
// With `measure` it first measures the machine profile, with the disks of config.nvme_path, and saves it.
int run_doctor(const RunConfig& config, bool measure, std::FILE* out);

}  // namespace terrace::cli
