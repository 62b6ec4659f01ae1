// The words of --data: files, or sources with weights. A number is a weight, and the files behind it, up to the next number,
// are its source: `--data 7 web-*.bin 3 code.bin`. Without numbers all files are one source.
//
// Threads: any. Errors: Error(ErrorKind::refused) for an invalid weight, a weight without files, and a file without a weight
// beside others with one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

struct DataSource {
  std::string name;  // its first file's name, with a number if another source has that name
  std::uint64_t weight = 1;
  std::vector<std::filesystem::path> files;
};

std::vector<DataSource> data_sources(const RunConfig& config);
std::vector<std::filesystem::path> data_files(const RunConfig& config);  // of all sources
// Returns the configuration with the evaluation's files as its data: --eval-data, or else the training files, which have a
// held-out part.
RunConfig of_evaluation(RunConfig config);
// Micro-batches of an evaluation: --eval-batches for each source.
std::uint64_t evaluated_batches(const RunConfig& config);

// The plan's lines about the data, one for each source; empty if there is only one source.
std::string data_lines(const RunConfig& config);

}  // namespace terrace::cli
