// The processes that mpirun or srun started, as one communicator. MPI is in a module that is loaded on first use, so that a
// program needs it only then, and also starts on machines without MPI.
//
// Owner:   the caller; MPI is initialised (MPI_THREAD_MULTIPLE) by the first communicator and finalised when the process exits.
// Threads: as Communicator.
// Errors:  Error(ErrorKind::missing) that says what is missing and how to get it.
#pragma once

#include <memory>

#include <terrace/parallel/comm/communicator.h>

namespace terrace {

// ranks_per_machine = 0: MPI reports the machines. Otherwise, ranks that count as one machine must be on one real machine.
std::unique_ptr<Communicator> make_mpi_communicator(const CommunicatorOptions& options = {});

}  // namespace terrace
