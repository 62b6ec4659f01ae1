// Compares what ranks that were started one by one must have in common: every setting that affects the bits of the run, or the
// steps that the ranks take together.
//
// Threads: the rank's. Errors: Error(ErrorKind::refused) that names the settings that differ, their values and the ranks; for a
// file that cannot be read, what describe_content() throws.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/ranks/team.h>

namespace terrace::cli {

inline constexpr std::uint64_t kReadWhole = std::uint64_t{1} << 30;  // bytes; shorter files are read as a whole

// "20000 bytes with checksum 0123456789abcdef". Of a file that is longer than `most` bytes, only `most` bytes are read, at
// places that depend only on its length.
std::string describe_content(const std::filesystem::path& file, std::uint64_t most = kReadWhole);

// The settings that must be equal on all ranks, by their keys. Files count by content, because each machine may have its own
// path.
nlohmann::json settings_of_all_ranks(const RunConfig& config);

// Called by all ranks. Ranks that are threads of a process have one configuration, so they compare nothing.
void demand_same_settings(const RunConfig& config, Team& team);
// Warns if the ranks' processors or GPUs differ in their bits: then the same run on other machines gives other results.
void warn_of_other_bits(const RunConfig& config, Team& team);

}  // namespace terrace::cli
