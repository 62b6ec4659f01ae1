// terrace train: the training loop, from top to bottom. Read this first; it uses everything else.
//
// Threads: one (the rank thread). Errors: see Engine; the exit codes of config/exit_codes.h.
#pragma once

#include <terrace/core/base/error.h>
#include <terrace/examples/terrace/config/exit_codes.h>
#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

Exit train(RunConfig config);

}  // namespace terrace::cli
