// What the program says about a plan that does not fit: what is missing, and the flags with which it fits.
//
// Pure. Threads: any.
#pragma once

#include <span>
#include <string>

#include <terrace/core/base/error.h>
#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/parallel/plan/plan.h>

namespace terrace::cli {

// "--host-memory 12MiB would fit": the flags with which all of these plans fit. Each refusal is for one rank, but a flag for
// host memory or disk is for a machine, whose ranks divide it.
std::string suggestion(const RunConfig& config, std::span<const Refusal> refusals);

// The error for a plan that does not fit, with ErrorKind::does_not_fit.
Error refusal_error(const RunConfig& config, const Plan& plan);
// The same for ranks of a pipeline, of which at least one does not fit.
Error refusal_error(const RunConfig& config, std::span<const Plan> ranks);

}  // namespace terrace::cli
