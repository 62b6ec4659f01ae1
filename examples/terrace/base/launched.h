// Whether a launcher (mpirun, mpiexec, srun, flux run) started this process as one of several ranks, and which rank it is. Read
// from the environment variables of Open MPI, of PMI (MPICH, Intel MPI, HPE's PALS), of Flux and of Slurm.
//
// Threads: any. Errors: only the demand_… functions throw; a variable that is not a number counts as absent.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace terrace::cli {

struct Launched {
  int ranks = 1, rank = 0;
  int local_ranks = 1, local_rank = 0;  // on this machine
  std::string said_by;                  // the variable with the number of ranks
};

using Environment = std::function<const char*(const char*)>;  // the value of a variable; null: it is not set
const char* own_environment(const char* name);

// Empty if this process is the only one, even under mpirun.
std::optional<Launched> launched(const Environment& variable = own_environment);
// Launcher variables stay set in a shell that a launcher started, and in scripts that export them. Returns the advice to remove
// them: "if no launcher started this process, these variables are left over: env -u OMPI_COMM_WORLD_SIZE -u
// OMPI_COMM_WORLD_RANK terrace …".
std::string describe_left_over(const Environment& variable = own_environment);
// Throws Error(ErrorKind::refused) if the mpirun that set the variables has ended: starting MPI would then end this process.
void demand_launcher(const Launched& place, const Environment& variable = own_environment);
// Call it if launched() is empty. Throws Error(ErrorKind::refused) if this process is one of several nevertheless: started by
// torchrun, which gives its processes no MPI, or by PALS without PMI. Each would train alone, in the same run directory.
void demand_alone(const Environment& variable = own_environment);

// Whether standard output is a terminal. mpirun gives its ranks a pseudo-terminal even if its own output is a pipe or a file,
// so for a rank the output of its parent decides.
bool output_is_terminal();

// `terrace launch` sets this variable for its ranks, because it prints the errors of several ranks once. Its value is the name
// of the pipe that they hold (rank_pipe.h).
inline constexpr const char* kUnderLaunch = "TERRACE_UNDER_LAUNCH";
// The beginning of the message of a rank that only ended because another one failed.
inline constexpr std::string_view kAnotherRankFailed = "another rank failed: ";
// Called before a rank prints an error that all ranks may have, such as an unknown flag: under mpirun, ranks other than the
// first wait until the first one has printed it and mpirun ends them.
void let_first_rank_speak();

}  // namespace terrace::cli
