// Benches of a whole model: they take a run's options and plan with them.
//
// Owner: `config` is the caller's and outlives the bench. Threads, errors: as Bench.
#pragma once

#include <memory>

#include <terrace/bench/bench.h>
#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

std::unique_ptr<bench::Bench> make_plan_residency_bench(const RunConfig& config);
std::unique_ptr<bench::Bench> make_step_bench(const RunConfig& config);
std::unique_ptr<bench::Bench> make_weights_bench(const RunConfig& config);

}  // namespace terrace::cli
