// adapter_config.json of a directory of PEFT: whether it describes adapters as terrace trains them.
//
// Threads: any.
// Errors:  Error that names the file: Exit::usage for one that is missing, that computes in a way that terrace does not have,
// or
//          whose numbers are not those of the run; Exit::corrupt for one that is no JSON object.
#pragma once

#include <cstdint>
#include <filesystem>

namespace terrace::lm {

void demand_adapter_config(const std::filesystem::path& file, std::int64_t rank, double alpha);

}  // namespace terrace::lm
