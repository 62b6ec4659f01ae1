// The entry of the MPI module, and MPI's life in this process.
#include <cstdlib>
#include <memory>

#include <terrace/core/error.h>
#include <terrace/parallel/comm/mpi_transport.h>

namespace terrace {
namespace {

// MPI cannot be initialised twice in one process, so this is the process's and not a communicator's.
void initialise_once() {
  int initialised = 0;
  MPI_Initialized(&initialised);
  int provided = MPI_THREAD_SINGLE;
  if (initialised) {
    MPI_Query_thread(&provided);
  } else {
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);  // ranks that wait leave their core to those that compute
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    std::atexit([] {
      int finalised = 0;
      MPI_Finalized(&finalised);
      if (!finalised && !MachineWindow::a_process_died()) MPI_Finalize();  // it waits for all
    });
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    throw Error("this MPI does not support MPI_THREAD_MULTIPLE\n  use an MPI that was built with it", Exit::hardware_missing);
  }
}

}  // namespace
}  // namespace terrace

extern "C" __attribute__((visibility("default"))) terrace::Transport* terrace_mpi_transport(
    const terrace::MpiOptions* options) {
  terrace::initialise_once();
  return std::make_unique<terrace::MpiTransport>(MPI_COMM_WORLD, "world", *options).release();
}
