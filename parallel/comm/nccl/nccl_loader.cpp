// NCCL's communicator, which is in the CUDA module.
#include <terrace/core/device/cuda_modules.h>
#include <terrace/parallel/comm/nccl/nccl.h>
#include <terrace/parallel/comm/transport.h>

namespace terrace {
namespace {

using MakeNccl = Transport* (*)(Device*, std::shared_ptr<Transport>*, std::shared_ptr<Transport>*);

MakeNccl load_nccl() { return reinterpret_cast<MakeNccl>(load_cuda_module("terrace_nccl_transport")); }

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, Device& device) {
  static const MakeNccl make = load_nccl();
  auto meeting = release_transport(host.split(0, host.rank(), host.name()));
  auto letters = release_transport(host.split(0, host.rank(), host.name() + " (NCCL)"));
  return make_communicator(std::shared_ptr<Transport>(make(&device, &meeting, &letters)));
}

}  // namespace terrace
