// Pipelines: what ranks do with their time, measured beside the simulator, with layers of given durations.
//
// Owner, threads, errors: as Bench.
#pragma once

#include <memory>

#include <terrace/bench/bench.h>

namespace terrace::bench {

std::unique_ptr<Bench> make_pipeline_bench();
std::unique_ptr<Bench> make_bubbles_bench();  // filled with the disk traffic of updates

}  // namespace terrace::bench
