// What is usual where nobody said: by what is trained, and on which machine. Each choice is told with its reason.
//
// Threads: any. Errors: those of a tokenizer that cannot be read.
#pragma once

#include <cstdint>

#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

// A configuration in which nothing of this is given yet, for files, --set and flags to stand above.
RunConfig nothing_given();
// Fills in what is still not given, and says so in `chosen`. `of_model`: the run begins with the weights of a published model.
void complete(RunConfig& config, bool of_model);
// Of --epochs: the steps in which all of the data is trained on so often.
void set_steps_of_epochs(RunConfig& config, std::uint64_t sequences);

inline constexpr std::int64_t kLongestUsual = 2048;  // tokens in a sequence of a model's directory

}  // namespace terrace::cli
