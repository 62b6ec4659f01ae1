// The words of --data: files, or sources with weights. A number is a weight; the files behind it, up to the next number, are a
// source: `--data 7 web-*.bin 3 code.bin`. Without numbers all files are one source.
//
// Threads: any. Errors: Error(Exit::usage) for weights that are none or have no files, and files without a weight.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

struct DataSource {
  std::string name;  // its first file's, with a number if another source has that name
  std::uint64_t weight = 1;
  std::vector<std::filesystem::path> files;
};

std::vector<DataSource> data_sources(const RunConfig& config);
std::vector<std::filesystem::path> data_files(const RunConfig& config);  // of all sources
// With the files that are evaluated on as its data: --eval-data, or else those of which a part is held out.
RunConfig of_evaluation(RunConfig config);
// Micro-batches of an evaluation: of each source --eval-batches.
std::uint64_t evaluated_batches(const RunConfig& config);

// What the plan says of the data: nothing of a single source. A line for each source.
std::string data_lines(const RunConfig& config);

}  // namespace terrace::cli
