// A picture of a pipeline's step: one row for each rank, with a bar for each forward, backward or half of a backward.
//
// Threads: any. Errors: none.
#pragma once

#include <string>

#include <terrace/parallel/pipeline/simulate.h>

namespace terrace::cli {

std::string timeline(const pipeline::Schedule& schedule, const pipeline::StageCosts& costs, const std::string& title);

}  // namespace terrace::cli
