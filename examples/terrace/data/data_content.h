// Finds out whether the files of --data still hold the same bytes, so that a run goes on with them. Sizes and names are part of
// a run's fingerprint (options.h); this class finds changes that keep both.
//
// A file whose times and inode number are unchanged is not read. Otherwise checksums are compared: of all bytes if a check at
// the start reads them anyway (searched tokens, conversations), or else of a sample.
//
// Owner:   the first rank's training. Threads: its thread.
// Errors:  those of describe_content(); Error(ErrorKind::corrupt) for a record that this program did not write.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

class DataContent {
 public:
  explicit DataContent(const RunConfig& config);
  // The checksum of all bytes of each file; empty if nothing has read them.
  void set_checksums(const std::vector<std::uint64_t>& of_files);
  // Names the files whose bytes differ from `recorded`; empty: none. An empty record, of an older version, differs from
  // nothing.
  [[nodiscard]] std::string difference(const nlohmann::json& recorded);
  // Names the files that seem to have been written to, whose sample is the same, and which are longer than the sample; empty:
  // none.
  [[nodiscard]] const std::string& doubt() const { return doubt_; }
  [[nodiscard]] nlohmann::json record();

 private:
  struct File {
    std::filesystem::path path;
    std::string state;             // its inode number, size and times
    std::string sample, checksum;  // empty: not known
  };
  [[nodiscard]] const std::string& sample_of(File& file) const;

  std::vector<File> files_;
  std::uint64_t sampled_bytes_;  // the most that is read of a file
  std::string doubt_;
};

}  // namespace terrace::cli
