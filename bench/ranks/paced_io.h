// An I/O engine with the timing of a slower disk. It makes real reads and writes, and reports each as ended at the time when a
// disk with the given speeds, one for each direction, would have finished it.
//
// Owner, threads, errors: as IoEngine.
#pragma once

#include <memory>

#include <terrace/offload/io/io_engine.h>

namespace terrace::bench {

std::unique_ptr<IoEngine> make_paced_engine(std::unique_ptr<IoEngine> inner, double read_bytes_per_s, double write_bytes_per_s);

}  // namespace terrace::bench
