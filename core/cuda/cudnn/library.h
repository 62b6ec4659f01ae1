// cuDNN, loaded on request. The calls of its graph API are declared here with their C ABI, so that building needs no header of
// cuDNN, and a run without it does not need the library.
//
// Owner:   a value; the library stays loaded until the process ends, because cuDNN does not support unloading.
// Threads: any, as for the library's own calls.
// Errors:  nullopt with `why` if it is missing or too old; Error with the library's own message for a call that fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <terrace/core/cuda/cudnn/abi.h>

namespace terrace::cuda::cudnn {

inline constexpr const char* kLibrary = "libcudnn.so.9";

struct Library {
  std::size_t (*version_number)() = nullptr;                         // cudnnGetVersion: 10,000 · major + 100 · minor + patch
  const char* (*name_of_status)(int) = nullptr;                      // cudnnGetErrorString
  void (*last_error)(char*, std::size_t) = nullptr;                  // cudnnGetLastErrorString
  int (*create_handle)(void**) = nullptr;                            // cudnnCreate: on the calling thread's GPU
  int (*destroy_handle)(void*) = nullptr;                            // cudnnDestroy
  int (*set_stream)(void*, void*) = nullptr;                         // cudnnSetStream
  int (*create)(int, void**) = nullptr;                              // cudnnBackendCreateDescriptor
  int (*destroy)(void*) = nullptr;                                   // cudnnBackendDestroyDescriptor
  int (*finalize)(void*) = nullptr;                                  // cudnnBackendFinalize
  int (*set)(void*, int, int, std::int64_t, const void*) = nullptr;  // cudnnBackendSetAttribute
  int (*get)(const void*, int, int, std::int64_t, std::int64_t*, void*) = nullptr;  // cudnnBackendGetAttribute
  int (*execute)(void*, void*, void*) = nullptr;                                    // cudnnBackendExecute

  [[nodiscard]] std::string version() const;  // "9.19.0"
  // "call: CUDNN_STATUS_…", and on the next line the library's last error message.
  [[nodiscard]] std::string describe(int status, const std::string& call) const;
  void check(int status, const std::string& call) const;
};

// Searches `file` as the loader does; a name without a folder is also searched where CUDA's libraries are installed.
std::optional<Library> load_library(std::string& why, const std::string& file = kLibrary);

}  // namespace terrace::cuda::cudnn
