// The values of settings that were not given. They depend on what is trained and on which machine, and are shown with their
// reasons.
//
// Threads: any. Errors: those of a tokenizer that cannot be read.
#pragma once

#include <cstdint>

#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

// Fills in the settings that are not given and depend on other things than their default, and records them in `chosen`.
// `of_model`: the run begins with the weights of a published model.
void complete(RunConfig& config, bool of_model);
// Sets the steps with which all of the data is trained on --epochs times.
void set_steps_of_epochs(RunConfig& config, std::uint64_t sequences);

inline constexpr std::int64_t kLongestUsual = 2048;  // tokens in a sequence, for a model's directory

}  // namespace terrace::cli
