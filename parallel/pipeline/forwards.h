// The forwards of a pipeline without backwards, as an evaluation has them.
//
// Pure. Threads: any. Errors: none.
#pragma once

#include <cstdint>

#include <terrace/parallel/pipeline/schedule.h>

namespace terrace::pipeline {

// Whenever a rank has computed it takes the deepest stage that has what it reads: with one stage a rank n + p − 1 forwards take
// all of n micro-batches through p ranks, and with v of them a rank that are placed round and round n · v + p − 1 of 1/v, where
// p divides n.
Schedule forwards(const Placement& placement, std::uint32_t micro_batches);

}  // namespace terrace::pipeline
