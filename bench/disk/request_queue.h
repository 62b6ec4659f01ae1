// Runs requests through an engine and keeps its queue full: whenever a request ends, the next one is submitted.
//
// Owner:   the caller owns requests, buffers and engine; `done` of the requests is overwritten.
// Threads: those of the engine.
// Errors:  when all requests have ended, Error with the errno of one that failed.
#pragma once

#include <cstdint>
#include <deque>

#include <terrace/offload/io/io_engine.h>

namespace terrace::bench {

void run_all(IoEngine& engine, std::deque<IoRequest>& requests, std::uint32_t queue_depth);

}  // namespace terrace::bench
