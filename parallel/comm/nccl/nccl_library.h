// What terrace asks of NCCL: the only way to it. The real one loads libnccl at run time (real_nccl.cpp), so that a GPU alone
// needs none; tests have one between the fake GPUs of a process (tests/support/fake_nccl.h).
//
// Owner:   shared by the communicators of a process. Handles belong to the code that made them.
// Threads: any; the calls of one group on one thread, and one handle on one thread at a time.
// Errors:  every call gives NCCL's result, 0 for success; text() says what it means.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include <terrace/core/cuda/runtime.h>

struct ncclComm;  // NCCL's own; opaque here

namespace terrace {

using NcclHandle = ncclComm*;
struct NcclId {
  std::array<std::byte, 128> bytes = {};  // ncclUniqueId
};

class NcclLibrary {
 public:
  virtual ~NcclLibrary() = default;
  virtual int make_id(NcclId* id) = 0;
  // Of the thread's device. Blocks until all ranks with this id are here.
  virtual int join(NcclHandle* handle, int ranks, const NcclId& id, int rank) = 0;
  virtual int leave(NcclHandle handle) = 0;  // nothing of it is under way
  virtual int abort(
      NcclHandle handle) = 0;  // ends running calls on this rank; the handle is gone, and used by no call after it
  virtual int trouble(NcclHandle handle) = 0;  // what went wrong beside the calls, on a network perhaps; 0: nothing
  // The calls between are one: they run together, and none waits for the one before.
  virtual int group_start() = 0;
  virtual int group_end() = 0;
  virtual int send(const void* from, std::size_t bytes, int peer, NcclHandle handle, CudaStreamHandle stream) = 0;
  virtual int receive(void* to, std::size_t bytes, int peer, NcclHandle handle, CudaStreamHandle stream) = 0;
  virtual int all_gather(const void* mine, void* all, std::size_t bytes, NcclHandle handle, CudaStreamHandle stream) = 0;
  virtual int broadcast(void* data, std::size_t bytes, int root, NcclHandle handle, CudaStreamHandle stream) = 0;

  // Asked for this GPU, whatever thread asks: CUDA would make a context on the first GPU for one that has none yet.
  [[nodiscard]] virtual bool is_device_memory(int device, const void* data) = 0;
  [[nodiscard]] virtual std::string text(int result) = 0;  // "ncclSystemError: unhandled system error"
};

}  // namespace terrace
