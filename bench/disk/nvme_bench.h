// Disks: sequential and random reads, writes, and both at once, without the page cache, through the I/O engine that training
// uses.
//
// Owner, threads, errors: as Bench.
#pragma once

#include <memory>

#include <terrace/bench/bench.h>

namespace terrace::bench {

std::unique_ptr<Bench> make_nvme_bench();
std::unique_ptr<Bench> make_chunks_bench();  // the whole path of a chunk, compared with the engine alone
std::unique_ptr<Bench> make_stream_bench();  // updates of state on the disk
std::unique_ptr<Bench> make_states_bench();  // an OptimizerState whose states are on the disk

}  // namespace terrace::bench
