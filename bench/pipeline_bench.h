// How ranks spend their time, measured and compared with the simulator, with layers of given durations.
//
// Owner, threads, errors: as Bench.
#pragma once

#include <memory>

#include <terrace/bench/bench.h>

namespace terrace::bench {

std::unique_ptr<Bench> make_pipeline_bench();
std::unique_ptr<Bench> make_bubbles_bench();  // filled with the disk traffic of updates
std::unique_ptr<Bench> make_overlap_bench();  // of data-parallel ranks: communication beside computing
std::unique_ptr<Bench> make_pieces_bench();   // of tensor ranks: exchanges in pieces, beside products

}  // namespace terrace::bench
