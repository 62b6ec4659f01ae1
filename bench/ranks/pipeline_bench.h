// Measures how ranks spend their time, with layers of given durations, and compares it with the simulator.
//
// Owner, threads, errors: as Bench.
#pragma once

#include <memory>

#include <terrace/bench/bench.h>

namespace terrace::bench {

std::unique_ptr<Bench> make_pipeline_bench();
std::unique_ptr<Bench> make_bubbles_bench();  // bubbles filled with the disk traffic of updates
std::unique_ptr<Bench> make_overlap_bench();  // data-parallel ranks: communication beside computing
std::unique_ptr<Bench> make_pieces_bench();   // tensor ranks: exchanges in pieces, beside products

}  // namespace terrace::bench
