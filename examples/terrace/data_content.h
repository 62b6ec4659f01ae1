// What the files of --data hold, so that a run goes on with the same bytes. Sizes and names are part of a run's fingerprint
// (options.h); here is what can change without them.
//
// A file of equal times and number is not read. Otherwise checksums are compared: of all bytes where a check at the start reads
// them all (tokens that are looked through, conversations), or else of a sample.
//
// Owner:   the first rank's training. Threads: its thread.
// Errors:  those of describe_content(); Error(Exit::corrupt) for a record that this program did not write.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

class DataContent {
 public:
  explicit DataContent(const RunConfig& config);
  // Of all bytes of each file; empty if nothing has read them.
  void set_checksums(const std::vector<std::uint64_t>& of_files);
  // Which files have other bytes than `recorded` says, in words; empty: none. An empty record, of an older version, says
  // nothing.
  [[nodiscard]] std::string difference(const nlohmann::json& recorded);
  // Which files look as if they had been written to and are longer than the sample, whose bytes are the same; empty: none.
  [[nodiscard]] const std::string& doubt() const { return doubt_; }
  [[nodiscard]] nlohmann::json record();

 private:
  struct File {
    std::filesystem::path path;
    std::string state;             // its times and number
    std::string sample, checksum;  // empty: not known
  };
  [[nodiscard]] const std::string& sample_of(File& file) const;

  std::vector<File> files_;
  std::uint64_t sampled_bytes_;  // of a file, at most
  std::string doubt_;
};

}  // namespace terrace::cli
