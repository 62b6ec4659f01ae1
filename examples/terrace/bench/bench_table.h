// The benches of `terrace bench`, in the order of the help.
//
// Threads: any. Errors: none.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include <terrace/bench/bench.h>
#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

struct BenchEntry {
  // `config` outlives the bench and is filled before check().
  std::function<std::unique_ptr<bench::Bench>(const RunConfig& config)> make;
  std::vector<std::string_view> takes;  // sections and keys of the run options that the bench accepts; usually none
};
const std::vector<BenchEntry>& bench_table();

}  // namespace terrace::cli
