// Runs every bench that this machine can run, one after the other, and saves the machine profile that `terrace plan` uses.
//
// Owner, threads, errors: as Bench. A bench whose hardware is absent is skipped with a note; that is not an error.
#pragma once

#include <memory>

#include <terrace/bench/bench.h>
#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

std::unique_ptr<bench::Bench> make_all_bench(const RunConfig& config);

}  // namespace terrace::cli
