#include <terrace/core/base/module.h>
#include <terrace/parallel/comm/mpi/mpi.h>
#include <terrace/parallel/comm/transport.h>

namespace terrace {
namespace {

using Make = comm::Transport* (*)(const CommunicatorOptions*);

Make load() {
  return reinterpret_cast<Make>(
      base::load_module("terrace_mpi", "terrace_mpi_transport",
                        "install Open MPI (openmpi-bin), and terrace's Debian package terrace-mpi if terrace "
                        "came so, or build terrace again with libopenmpi-dev"));
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const CommunicatorOptions& options) {
  static const Make make = load();
  return comm::make_communicator(std::shared_ptr<comm::Transport>(make(&options)));
}

}  // namespace terrace
