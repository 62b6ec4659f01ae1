// terrace doctor: what this machine is, what terrace may use of it, and how to mend what is wrong.
//
// Threads: one. Errors: findings are no exceptions; writes and removes one page-sized file under every disk path.
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

struct Finding {
  enum class Status { ok, warn, fail };  // fail: required and missing
  Status status = Status::ok;
  std::string name;  // "io_uring"
  std::string text;  // what was found
  std::string mend;  // what to do about it; empty when nothing is wrong
};
std::string_view name_of(Finding::Status status);  // "OK", "WARN", "FAIL"

std::vector<Finding> examine_machine(const RunConfig& config);
std::vector<Finding> examine_path(const std::filesystem::path& path);  // one folder of the disk tier

// Prints the findings, as one JSON object with config.json, and returns the exit code: 0, or 4 when something required is
// missing. With `measure` it takes the machine profile over config.nvme_path first and saves it.
int run_doctor(const RunConfig& config, bool measure, std::FILE* out);

}  // namespace terrace::cli
