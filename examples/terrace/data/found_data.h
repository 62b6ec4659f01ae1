// --data-format auto: finds what the files of a run hold, and whether the run can be trained on it. A file is never trained on
// as something else: text is read with the model's tokenizer; only a model of 256 ids without a tokenizer takes its bytes as
// tokens.
//
// Threads: any. Errors: Error(ErrorKind::refused) that names the files and the flags to give.
#pragma once

#include <string>

#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

// The format of the run's files. Missing files are skipped: their reader reports them.
DataFormat found_format(const RunConfig& config);
// What the run is trained on, for its first lines: "chat.jsonl: conversations, of which the answers are learned".
std::string describe_data(const RunConfig& config);

}  // namespace terrace::cli
