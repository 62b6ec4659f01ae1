// The schedule of a pipeline's forwards without backwards, for evaluations.
//
// Pure. Threads: any. Errors: none.
#pragma once

#include <cstdint>

#include <terrace/parallel/pipeline/schedule.h>

namespace terrace::pipeline {

// Whenever a rank is free, it takes the deepest stage whose inputs have arrived. With one stage for each of p ranks, n
// micro-batches take the time of n + p − 1 forwards. With v stages for each rank, placed round-robin, they take n · v + p − 1
// forwards of 1/v the length, if p divides n.
Schedule forwards(const Placement& placement, std::uint32_t micro_batches);

}  // namespace terrace::pipeline
