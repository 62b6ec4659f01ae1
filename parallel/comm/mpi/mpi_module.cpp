// The entry of the MPI module, and MPI's life in this process.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include <terrace/core/base/error.h>
#include <terrace/parallel/comm/mpi/mpi_transport.h>
#include <terrace/parallel/comm/mpi/watchdog.h>

namespace terrace::comm {
namespace {

// MPI_Finalize waits for all ranks, and one of them may be stopped or hang. After a failure, the ranks that can end arrive
// together or soon after each other.
constexpr std::chrono::seconds kEndAfterFailure{2};
constexpr std::chrono::milliseconds kLook{1};

// Waits until all ranks have arrived. With MPI_Finalize alone, a rank could end although its neighbour, which had arrived and
// waited for it, was stopped meanwhile: then nothing would watch the stopped rank, and the launcher would wait for it without a
// limit. After this function, MPI_Finalize needs only one more sign of life from each rank.
void meet_at_the_end() {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Request all = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(MPI_COMM_WORLD, &all) != MPI_SUCCESS) return;
  for (int come = 0; MPI_Test(&all, &come, MPI_STATUS_IGNORE) == MPI_SUCCESS && !come;) std::this_thread::sleep_for(kLook);
}

void finalise(int status, std::chrono::milliseconds time_limit) {
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (finalised || MachineWindow::a_process_died()) return;
  const bool failed = status != 0 && MachineWindow::a_rank_failed();
  const auto wait = failed ? std::min<std::chrono::milliseconds>(kEndAfterFailure, time_limit) : limit_of_mpi(time_limit);
  const Watchdog watchdog(wait, [=] {  // then the launcher ends the others
    const int code = status != 0 ? status : EXIT_FAILURE;
    if (failed) ::_exit(code);
    end_process(describe_wait_in_mpi("the end of MPI", time_limit), code);
  });
  meet_at_the_end();
  MPI_Finalize();
}

// MPI cannot be initialised twice in one process, so this belongs to the process, not to a communicator.
void initialise_once(std::chrono::milliseconds time_limit) {
  int initialised = 0;
  MPI_Initialized(&initialised);
  int provided = MPI_THREAD_SINGLE;
  if (initialised) {
    MPI_Query_thread(&provided);
  } else {
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);  // ranks that wait leave their core to those that compute
    const Watchdog watchdog(limit_of_mpi(time_limit),
                            [=] { end_process(describe_wait_in_mpi("the start of MPI", time_limit)); });
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    static const auto limit = time_limit;
    on_exit([](int status, void*) { finalise(status, limit); }, nullptr);
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    throw Error("this MPI does not support MPI_THREAD_MULTIPLE\n  use an MPI that was built with it", ErrorKind::missing);
  }
}

}  // namespace
}  // namespace terrace::comm

extern "C" __attribute__((visibility("default"))) terrace::comm::Transport* terrace_mpi_transport(
    const terrace::CommunicatorOptions* options) {
  terrace::comm::initialise_once(options->time_limit);
  return std::make_unique<terrace::comm::MpiTransport>(MPI_COMM_WORLD, "world", *options).release();
}
