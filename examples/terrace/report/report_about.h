// What a run is, for the first lines of its page: model, parameters, data, device, optimizer.
//
// Threads: any. Errors: none; what cannot be read is left out.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <terrace/examples/terrace/report/run_steps.h>

namespace terrace::cli {

// An HTML table; empty if the directory has no settings that can be read. `plan`: the run's; may be null.
std::string about_run(const std::filesystem::path& run_dir, const nlohmann::json& plan, const RunSteps& steps);

}  // namespace terrace::cli
