// Whether mpirun or srun started this process as one of several, and where it stands among them: from the environment that Open
// MPI, PMIx, MPICH's PMI and Slurm give.
//
// Threads: any. Errors: none; what is not a number is taken as absent.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace terrace::cli {

struct Launched {
  int ranks = 1, rank = 0;
  int local_ranks = 1, local_rank = 0;  // of this machine
};

// Empty for a process that was started alone, also under a launcher. `variable` is how the environment is read.
std::optional<Launched> launched(const std::function<const char*(const char*)>& variable);
std::optional<Launched> launched();  // by this process

}  // namespace terrace::cli
