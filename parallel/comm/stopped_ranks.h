// Which processes of this machine are stopped (SIGSTOP, a debugger), as /proc tells it: MPI's own calls name no rank.
//
// Threads: any. Errors: none; what cannot be read counts as not stopped.
#pragma once

#include <sys/types.h>

#include <string>

namespace terrace {

bool is_stopped(pid_t process);
// Of this job and this machine, without this process: "rank 1 (process 4711), rank 3 (process 4713)". Empty: none is known.
// The launcher's PMIx server gives each rank its job and its number in its environment.
std::string stopped_ranks();
std::string own_rank();  // "rank 0"; "a rank" if the launcher does not say which

}  // namespace terrace
