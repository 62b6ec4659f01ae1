// SIGUSR1: commit at the end of this step and go on. `mpirun` passes it on to its ranks, and so does `terrace launch`.
//
// main() calls remember_commit_requests() before anything else, so that the signal never ends the program: a starting run
// remembers it, and commands that commit nothing ignore it.
//
// Owner:   the process has one. Threads: take_commit_request() from any; remember_commit_requests() from main's.
#pragma once

namespace terrace::cli {

void remember_commit_requests();
bool take_commit_request();  // whether the signal came since the last call

}  // namespace terrace::cli
