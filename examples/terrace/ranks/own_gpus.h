// Checks that no two ranks compute on one GPU.
//
// Threads: the rank's; called by all ranks. Errors: Error(ErrorKind::missing) that names both ranks.
#pragma once

#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/ranks/team.h>

namespace terrace::cli {

void demand_own_gpus(const RunConfig& config, Team& team);

}  // namespace terrace::cli
