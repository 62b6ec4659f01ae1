// The windows of attention that a file of weights was trained with. They are in no tensor, but in a config.json of Hugging Face
// beside the file, or in the metadata of a file of --save.
//
// Threads: any. Errors: Error(ErrorKind::refused) if they differ from the run's and the user has given no --window.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/parallel/layers/parts/block_pattern.h>

namespace terrace::cli {

inline constexpr const char* kWindowKey = "sliding_window";  // the key in config.json and in the metadata

// Reads from the config.json of a model with `blocks` blocks the window (sliding_window), and which blocks have it
// (layer_types, sliding_window_pattern or max_window_layers). Empty: it says nothing of windows, or nothing that can be read.
std::optional<layers::Windows> windows_of_config(const nlohmann::json& config, std::int64_t blocks);

void demand_told_windows(const RunConfig& c);
// Warns if the file has windows that are no shorter than the sequences of a run without windows. The run computes the same, but
// its weights are then saved without windows.
std::optional<std::string> warning_of_told_windows(const RunConfig& c);

}  // namespace terrace::cli
