// The results of an earlier `terrace bench … --json`, and how new ones differ from them.
//
// Threads: any.
// Errors:  read_results() throws Error(ErrorKind::refused) for a file that cannot be read or is no such output.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace terrace::bench {

// The whole object: {"machine": {…}, "results": [{…}, …]}, with at least one result. `mend` says which file to give instead.
nlohmann::ordered_json read_results(const std::filesystem::path& file, std::string_view mend);

// What an old and a new result measured alike, and their figures.
struct ComparedResult {
  nlohmann::ordered_json test;  // the keys that say what was measured: op, block_bytes, …
  std::string figure;           // the key of the main figure: gb_per_s
  double old = 0, now = 0;
  // True if the figures differ by more than the runs of either side did (spread × median).
  bool beyond_spread = false;
  [[nodiscard]] double ratio() const { return now / old; }
};

struct Comparison {
  std::vector<ComparedResult> rows;        // in the order of the new results
  nlohmann::ordered_json machine;          // facts that differ: {"kernel": ["6.1", "6.8"]}
  std::size_t only_old = 0, only_new = 0;  // results without a partner
};
// Results are partners if their tests are equal. If several are, they pair up in their order.
Comparison compare_results(const nlohmann::ordered_json& old, const nlohmann::ordered_json& now);

}  // namespace terrace::bench
