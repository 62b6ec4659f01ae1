// terrace train: the training loop, straight down. Read this first; everything else is below it.
//
// Threads: one (the rank thread). Errors: see Engine; the exit codes of core/error.h.
#pragma once

#include <terrace/core/error.h>
#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

Exit train(RunConfig config);

}  // namespace terrace::cli
