// Searches the data of a run for tokens outside the vocabulary before the run changes anything, and computes checksums of what
// it reads. The ranks of a machine divide the work.
//
// Called by all ranks. Threads: the rank's.
// Errors:  Error(ErrorKind::refused) with the file, the token's position, its value and the vocabulary;
//          Error(ErrorKind::failed) if a file cannot be read.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/ranks/team.h>

namespace terrace::cli {

// Reports its progress on standard error if it takes longer than two seconds. Returns a checksum of all bytes of each file of
// --data, which is the same for any number of ranks; empty if no file had to be read.
std::vector<std::uint64_t> demand_tokens_of_vocabulary(const RunConfig& config, Team& team);

}  // namespace terrace::cli
