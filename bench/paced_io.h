// An I/O engine that takes the time of a slower disk: real reads and writes below it, whose ends are told when a disk of the
// given speeds, one for each direction, would have come to them.
//
// Owner, threads, errors: as IoEngine.
#pragma once

#include <memory>

#include <terrace/offload/io_engine.h>

namespace terrace::bench {

std::unique_ptr<IoEngine> make_paced_engine(std::unique_ptr<IoEngine> inner, double read_bytes_per_s, double write_bytes_per_s);

}  // namespace terrace::bench
