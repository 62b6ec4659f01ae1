// An I/O engine with the timing of a slower disk: it makes real reads and writes, and reports their ends at the time at which a
// disk with the given speeds, one for each direction, would have finished them.
//
// Owner, threads, errors: as IoEngine.
#pragma once

#include <memory>

#include <terrace/offload/io_engine.h>

namespace terrace::bench {

std::unique_ptr<IoEngine> make_paced_engine(std::unique_ptr<IoEngine> inner, double read_bytes_per_s, double write_bytes_per_s);

}  // namespace terrace::bench
