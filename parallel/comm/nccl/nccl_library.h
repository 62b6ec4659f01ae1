// The calls of NCCL that terrace uses; NCCL is reached only through them. The real library loads libnccl at run time
// (real_nccl.cpp), so that a single GPU needs no NCCL; tests use a library between the fake GPUs of a process
// (tests/support/gpu/fake_nccl.h).
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

namespace terrace::comm {

using NcclHandle = ncclComm*;
struct NcclId {
  std::array<std::byte, 128> bytes = {};  // ncclUniqueId
};

inline constexpr int kNcclInProgress = 7;  // ncclInProgress

struct NcclJoin {
  int ranks = 0;
  NcclId id = {};
  int rank = 0;
  // Blocks of a GPU that one call may take. A call holds its blocks until the other ranks make the same call, so the calls that
  // several lanes make at once must all have room.
  int most_blocks = 0;
};

class NcclLibrary {
 public:
  virtual ~NcclLibrary() = default;
  virtual int make_id(NcclId* id) = 0;
  // Begins to join; uses the thread's current device. The handle must not be used, only aborted, while joined() is
  // kNcclInProgress, because other ranks with this id have not joined yet.
  virtual int begin_join(NcclHandle* handle, const NcclJoin& how) = 0;
  virtual int joined(NcclHandle handle) = 0;
  virtual int leave(NcclHandle handle) = 0;    // requires that none of its calls is running
  virtual int abort(NcclHandle handle) = 0;    // ends running calls on this rank; frees the handle
  virtual int trouble(NcclHandle handle) = 0;  // an error outside the calls, for example of a network; 0: none
  // The calls between these two are one: they run together, and none waits for the one before.
  virtual int group_start() = 0;
  virtual int group_end() = 0;
  virtual int send(const void* from, std::size_t bytes, int peer, NcclHandle handle, cuda::CudaStreamHandle stream) = 0;
  virtual int receive(void* to, std::size_t bytes, int peer, NcclHandle handle, cuda::CudaStreamHandle stream) = 0;
  virtual int all_gather(const void* mine, void* all, std::size_t bytes, NcclHandle handle, cuda::CudaStreamHandle stream) = 0;
  virtual int broadcast(void* data, std::size_t bytes, int root, NcclHandle handle, cuda::CudaStreamHandle stream) = 0;

  // Sets this GPU first, on any thread: on a thread that has no context yet, CUDA would make one on the first GPU.
  [[nodiscard]] virtual bool is_device_memory(int device, const void* data) = 0;
  [[nodiscard]] virtual std::string text(int result) = 0;  // "ncclSystemError: unhandled system error"
};

}  // namespace terrace::comm
