// Finds the processes of this machine that are stopped (SIGSTOP, a debugger), from /proc: MPI's own calls name no rank.
//
// Threads: any. Errors: none; what cannot be read counts as not stopped.
#pragma once

#include <sys/types.h>

#include <string>

namespace terrace::comm {

bool is_stopped(pid_t process);
// The stopped ranks of this job on this machine, except this process: "rank 1 (process 4711), rank 3 (process 4713)". Empty if
// none is known. The launcher's PMIx server puts a rank's job and number into its environment.
std::string stopped_ranks();
std::string own_rank();  // "rank 0"; "a rank" if the launcher does not say which

}  // namespace terrace::comm
