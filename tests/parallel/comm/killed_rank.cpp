// Under mpirun: rank 1 is killed before its fourth all-reduce. The others must name it, and end.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/parallel/comm/mpi/mpi.h>

int main() {
  using namespace terrace;
  ThreadPool pool(1);
  const auto device = make_cpu_device(pool);
  const auto world = make_mpi_communicator();
  const auto stream = device->make_stream("comm");
  std::vector<std::byte> data(1 << 20);
  try {
    for (int i = 0; i < 10; ++i) {
      if (world->rank() == 1 && i == 3) kill(getpid(), SIGKILL);
      world->all_reduce(*stream, comm::Reduction::sum(DType::fp32), data, data);
      stream->synchronize();
    }
  } catch (const std::exception& error) {
    std::printf("rank %d knows: %s\n", world->rank(), error.what());
    return 1;
  }
  std::printf("rank %d noticed nothing\n", world->rank());
  return 0;
}
