// Where a run computes, and how much of each tier it may use.
//
// Threads: a value.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace terrace::cli {

// Sizes are texts, because `auto` and `unlimited` are possible values (resolve_bytes()).
struct MemoryConfig {
  std::string device = "auto";  // auto | cpu | cuda:N
  std::string device_memory = "auto", host_memory = "auto", nvme_limit = "unlimited";
  std::vector<std::filesystem::path> nvme_path = {};  // empty: no disk tier
};

}  // namespace terrace::cli
