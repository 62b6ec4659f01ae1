// A picture of a pipeline's step: one row a rank, forwards, backwards and their halves as bars with their micro-batches.
//
// Threads: any. Errors: none.
#pragma once

#include <string>

#include <terrace/parallel/pipeline/simulate.h>

namespace terrace::cli {

std::string timeline(const pipeline::Schedule& schedule, const pipeline::StageCosts& costs, const std::string& title);

}  // namespace terrace::cli
