// A communicator of ranks with one GPU each: NCCL moves bytes in device memory between GPUs, and the communicator below it
// moves bytes in host memory. It needs the CUDA module, and NCCL, which is loaded at its first use.
//
// Owner:   the caller; the device must outlive it.
// Threads: as Communicator.
// Errors:  as Communicator; Error(ErrorKind::missing) that says what is missing and how to get it, on every rank that
//          lacks it; the other ranks wait no longer than the communicator's time limit.
#pragma once

#include <memory>

#include <terrace/core/device/device.h>
#include <terrace/parallel/comm/communicator.h>

namespace terrace {

// Collective over `host`, which can be used as before. Each rank must have a different GPU.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, Device& device);

}  // namespace terrace
