// Whether mpirun or srun started this process as one of several ranks, and which rank it is. Read from the environment
// variables of Open MPI, PMIx, MPICH's PMI and Slurm.
//
// Threads: any. Errors: none; a variable that is not a number counts as absent.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace terrace::cli {

struct Launched {
  int ranks = 1, rank = 0;
  int local_ranks = 1, local_rank = 0;  // of this machine
};

// Empty for a process that is the only one, also if mpirun started it. `variable` reads the environment.
std::optional<Launched> launched(const std::function<const char*(const char*)>& variable);
std::optional<Launched> launched();  // this process

// Whether standard output is a terminal. mpirun gives its ranks a pseudo-terminal even if its own output is a pipe or a file,
// so for a rank the output of its parent decides.
bool output_is_terminal();

// Set in the environment of the ranks of `terrace launch`, which prints the errors of several ranks once.
inline constexpr const char* kUnderLaunch = "TERRACE_UNDER_LAUNCH";
// Begins the message of a rank that only ended because another one failed.
inline constexpr std::string_view kAnotherRankFailed = "another rank failed: ";
// Before a rank prints an error that all ranks may have, such as an unknown flag: under mpirun, ranks other than the first wait
// until the first one has printed it and mpirun ends them.
void let_first_rank_speak();

}  // namespace terrace::cli
