// NCCL's communicator, which is in the CUDA module.
#include <terrace/core/device/cuda_modules.h>
#include <terrace/parallel/comm/nccl/nccl.h>
#include <terrace/parallel/comm/transport.h>

namespace terrace {
namespace {

using MakeNccl = comm::Transport* (*)(Device*, std::shared_ptr<comm::Transport>*, std::shared_ptr<comm::Transport>*);

MakeNccl load_nccl() { return reinterpret_cast<MakeNccl>(device::load_cuda_module("terrace_nccl_transport")); }

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, Device& device) {
  static const MakeNccl make = load_nccl();
  auto meeting = comm::release_transport(host.split(0, host.rank(), host.name()));
  auto letters = comm::release_transport(host.split(0, host.rank(), host.name() + " (NCCL)"));
  return comm::make_communicator(std::shared_ptr<comm::Transport>(make(&device, &meeting, &letters)));
}

}  // namespace terrace
