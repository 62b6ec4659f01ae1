// terrace plan --pp: the memory and data movement of each rank of a pipeline, and the time of a step with the waits between
// ranks.
//
// Threads: main's. Errors: as plan_command(); the message names a rank whose layers do not fit.
#pragma once

#include <terrace/core/base/error.h>
#include <terrace/core/machine/machine.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/config/exit_codes.h>

namespace terrace::cli {

// `profile`: of this machine, or of a rank of the cluster that `config` is for.
Exit plan_pipeline(const PlanOptions& options, const RunConfig& config, const MachineProfile& profile);

}  // namespace terrace::cli
