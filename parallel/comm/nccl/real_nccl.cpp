// NCCL through its own header, loaded at run time: a machine with one GPU needs no NCCL, and PyTorch's wheels bring it.
#include <terrace/parallel/comm/nccl/real_nccl.h>

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <chrono>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace::comm {
namespace {

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
static_assert(kNcclInProgress == ncclInProgress);

class RealNccl final : public NcclLibrary {
 public:
  RealNccl() {
    void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      throw Error(
          fmt::format(
              "several GPUs need NCCL, but it cannot be loaded: {}\n  install it, or set LD_LIBRARY_PATH to the folder of "
              "libnccl.so.2",
              dlerror()),
          ErrorKind::missing);
    }
    find(library, make_id_, "ncclGetUniqueId");
    find(library, join_, "ncclCommInitRankConfig");
    find(library, finish_, "ncclCommFinalize");
    find(library, leave_, "ncclCommDestroy");
    find(library, abort_, "ncclCommAbort");
    find(library, trouble_, "ncclCommGetAsyncError");
    find(library, group_start_, "ncclGroupStart");
    find(library, group_end_, "ncclGroupEnd");
    find(library, send_, "ncclSend");
    find(library, receive_, "ncclRecv");
    find(library, all_gather_, "ncclAllGather");
    find(library, broadcast_, "ncclBroadcast");
    find(library, text_, "ncclGetErrorString");
    find(library, last_error_, "ncclGetLastError");
  }

  int make_id(NcclId* id) override {
    ncclUniqueId made;
    const auto result = make_id_(&made);
    std::memcpy(id->bytes.data(), &made, sizeof made);
    return result;
  }
  int begin_join(NcclHandle* handle, const NcclJoin& how) override {
    ncclUniqueId given;
    std::memcpy(&given, &how.id, sizeof given);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = how.most_blocks;
    const auto result = join_(handle, how.ranks, given, how.rank, &config);
    return result == ncclInProgress ? ncclSuccess : result;
  }
  int joined(NcclHandle handle) override {
    ncclResult_t state = ncclSuccess;
    const auto result = trouble_(handle, &state);
    return result == ncclSuccess ? state : result;
  }
  int leave(NcclHandle handle) override {
    const auto result = settled(handle, finish_(handle));
    return result == ncclSuccess ? leave_(handle) : result;
  }
  int abort(NcclHandle handle) override { return abort_(handle); }
  int trouble(NcclHandle handle) override {
    ncclResult_t state = ncclSuccess;
    const auto result = trouble_(handle, &state);
    if (result != ncclSuccess) return result;
    return state == ncclInProgress ? ncclSuccess : state;
  }
  int group_start() override {
    const auto result = group_start_();
    if (result == ncclSuccess) ++group_depth;
    return result;
  }
  int group_end() override {
    --group_depth;
    return settled(handle_of_group, group_end_());
  }
  int send(const void* from, std::size_t bytes, int peer, NcclHandle handle, cuda::CudaStreamHandle stream) override {
    return called(handle, send_(from, bytes, ncclInt8, peer, handle, stream));
  }
  int receive(void* to, std::size_t bytes, int peer, NcclHandle handle, cuda::CudaStreamHandle stream) override {
    return called(handle, receive_(to, bytes, ncclInt8, peer, handle, stream));
  }
  int all_gather(const void* mine, void* all, std::size_t bytes, NcclHandle handle, cuda::CudaStreamHandle stream) override {
    return called(handle, all_gather_(mine, all, bytes, ncclInt8, handle, stream));
  }
  int broadcast(void* data, std::size_t bytes, int root, NcclHandle handle, cuda::CudaStreamHandle stream) override {
    return called(handle, broadcast_(data, data, bytes, ncclInt8, root, handle, stream));
  }

  bool is_device_memory(int device, const void* data) override {
    cudaPointerAttributes found{};
    if (cudaSetDevice(device) != cudaSuccess || cudaPointerGetAttributes(&found, data) != cudaSuccess) {
      cudaGetLastError();  // clears the error: CUDA does not know ordinary host memory
      return false;
    }
    return found.type == cudaMemoryTypeDevice;
  }
  std::string text(int result) override {
    const char* const more = last_error_(nullptr);
    const char* const what = text_(static_cast<ncclResult_t>(result));
    return more && *more ? fmt::format("{} ({}): {}", what, result, more) : fmt::format("{} ({})", what, result);
  }

 private:
  // A handle that was made without blocking may still be at work on a call when the call returns; no other call of the handle
  // may be made before.
  int settled(NcclHandle handle, ncclResult_t result) {
    constexpr auto kLook = std::chrono::microseconds(20);
    while (result == ncclInProgress) {
      std::this_thread::sleep_for(kLook);
      if (const auto asked = trouble_(handle, &result); asked != ncclSuccess) return asked;
    }
    return result;
  }
  // The calls of a group are made at its end, which belongs to one handle.
  int called(NcclHandle handle, ncclResult_t result) {
    if (group_depth == 0) return settled(handle, result);
    handle_of_group = handle;
    return result == ncclInProgress ? ncclSuccess : result;
  }
  static thread_local int group_depth;
  static thread_local NcclHandle handle_of_group;

  template <class F>
  static void find(void* library, F*& function, const char* name) {
    function = reinterpret_cast<F*>(dlsym(library, name));
    if (function) return;
    throw Error(
        fmt::format("libnccl.so.2 has no {}: it is too old\n  install NCCL {}.{} or later", name, NCCL_MAJOR, NCCL_MINOR),
        ErrorKind::missing);
  }

  decltype(ncclGetUniqueId)* make_id_ = nullptr;
  decltype(ncclCommInitRankConfig)* join_ = nullptr;
  decltype(ncclCommFinalize)* finish_ = nullptr;
  decltype(ncclCommDestroy)* leave_ = nullptr;
  decltype(ncclCommAbort)* abort_ = nullptr;
  decltype(ncclCommGetAsyncError)* trouble_ = nullptr;
  decltype(ncclGroupStart)* group_start_ = nullptr;
  decltype(ncclGroupEnd)* group_end_ = nullptr;
  decltype(ncclSend)* send_ = nullptr;
  decltype(ncclRecv)* receive_ = nullptr;
  decltype(ncclAllGather)* all_gather_ = nullptr;
  decltype(ncclBroadcast)* broadcast_ = nullptr;
  decltype(ncclGetErrorString)* text_ = nullptr;
  decltype(ncclGetLastError)* last_error_ = nullptr;
};

thread_local int RealNccl::group_depth = 0;
thread_local NcclHandle RealNccl::handle_of_group = nullptr;

}  // namespace

std::shared_ptr<NcclLibrary> real_nccl() {
  static const auto library = std::make_shared<RealNccl>();
  return library;
}

}  // namespace terrace::comm
