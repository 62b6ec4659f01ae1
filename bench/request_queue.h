// Runs requests through an engine whose queue is kept full: each one that ends brings in the next.
//
// Owner:   the caller owns requests, buffers and engine; `done` of the requests is overwritten.
// Threads: the engine's own.
// Errors:  Error names errno of one that failed, when all have ended.
#pragma once

#include <cstdint>
#include <deque>

#include <terrace/offload/io_engine.h>

namespace terrace::bench {

void run_all(IoEngine& engine, std::deque<IoRequest>& requests, std::uint32_t queue_depth);

}  // namespace terrace::bench
