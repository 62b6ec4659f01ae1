// --data-format auto: what the files of a run hold, and that the run may be trained on it. Nothing is trained on as something
// that it is not: text is read with the tokenizer of the model, and its bytes are tokens only of a model of 256 ids without
// one.
//
// Threads: any. Errors: Error(Exit::usage) that names the files, and the line to type.
#pragma once

#include <string>

#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

inline constexpr const char* kFindForm = "auto";  // the --data-format

// The --data-format of the run's files. Those that are not there are left to the one who reads them.
std::string found_format(const RunConfig& config);
// What the run is trained on, for its first lines: "chat.jsonl: conversations, of which the answers are learned".
std::string describe_data(const RunConfig& config);

}  // namespace terrace::cli
