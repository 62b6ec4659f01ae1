// The windows of attention that a file of weights was trained with: no tensor has them, but a config.json of Hugging Face
// beside it, or the metadata of a file of --save.
//
// Threads: any. Errors: Error(Exit::usage) if they are others than the run's and the user has given none.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <terrace/examples/terrace/run_config.h>
#include <terrace/parallel/layers/windows.h>

namespace terrace::cli {

inline constexpr const char* kWindowKey = "sliding_window";  // in either

// Of a model of so many blocks: sliding_window, and which blocks have it: layer_types, or all but every so many
// (sliding_window_pattern). Empty: it says nothing of windows, or nothing that can be read.
std::optional<layers::Windows> windows_of_config(const nlohmann::json& config, std::int64_t blocks);

void demand_told_windows(const RunConfig& c);
// Of a run without windows whose file has some that are no shorter than its sequences: nothing computes otherwise here, but the
// weights go on without them.
std::optional<std::string> warning_of_told_windows(const RunConfig& c);

}  // namespace terrace::cli
