// The ranks of a communicator with a GPU each: what lies in device memory is moved by NCCL, between GPUs, and what lies in host
// memory by the communicator below. All of that needs the CUDA module, and NCCL itself, which is loaded at its first use.
//
// Owner:   the caller; the device must outlive it.
// Threads: as Communicator.
// Errors:  as Communicator; Error(Exit::hardware_missing) that says what is missing and how to get it, on every rank that
//          lacks it: the others wait no longer than the communicator's time limit.
#pragma once

#include <memory>

#include <terrace/core/device.h>
#include <terrace/parallel/comm/communicator.h>

namespace terrace {

// Collective over `host`, which keeps its own calls. Each rank's device is another GPU.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, Device& device);

}  // namespace terrace
