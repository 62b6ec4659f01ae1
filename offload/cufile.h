// GPUDirect Storage: NVIDIA's cuFile, loaded at its first use. Its few calls are declared here as in its manual
// (docs.nvidia.com/gpudirect-storage/api-reference-guide), so that building needs no header of CUDA.
//
// Owner:   CuFile is a value; the library stays loaded and its driver open until the process ends, as its manual requires.
// Threads: any.
// Errors:  nullopt with `why` if it is missing or does not work.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <terrace/offload/io_engine.h>

namespace terrace {

inline constexpr const char* kCuFileLibrary = "libcufile.so.0";

struct CuFile {
  struct Status {  // CUfileError_t
    int error = 0, cuda_error = 0;
  };
  using File = void*;   // CUfileHandle_t
  struct Description {  // CUfileDescr_t
    int type = 1;       // CU_FILE_HANDLE_TYPE_OPAQUE_FD
    union {
      int descriptor;
      void* handle = nullptr;
    };
    const void* operations = nullptr;
  };
  Status (*open_driver)() = nullptr;                                   // cuFileDriverOpen
  Status (*register_file)(File*, Description*) = nullptr;              // cuFileHandleRegister
  void (*release_file)(File) = nullptr;                                // cuFileHandleDeregister
  Status (*register_memory)(const void*, std::size_t, int) = nullptr;  // cuFileBufRegister
  Status (*release_memory)(const void*) = nullptr;                     // cuFileBufDeregister
  // Returns bytes, −1 with errno, or another negative number: a cuFile error. The two offsets count from the start of the file
  // and from the buffer's base.
  ssize_t (*read)(File, void*, std::size_t, off_t, off_t) = nullptr;         // cuFileRead
  ssize_t (*write)(File, const void*, std::size_t, off_t, off_t) = nullptr;  // cuFileWrite
  int version = 0;                                                           // 1000 · major + 10 · minor
};

// Loads cuFile; its driver is not open yet.
std::optional<CuFile> load_cufile(std::string& why, const std::string& library = kCuFileLibrary);
// The text of a cuFile status, with its remedy if there is one.
std::string describe_cufile(int error);

// Reads and writes through cuFile on a few threads; returns nullptr and sets `why` if cuFile cannot be used. Buffers may be in
// host or in device memory: with nvidia-fs and a supported disk, bytes of device memory do not pass through the host. A file
// that cuFile refuses is read and written without it, with one warning; memory that it does not register is used unregistered.
struct CuFileOptions {
  std::string library = kCuFileLibrary;
  int threads = 8;
  std::function<void()> enter = {};  // called once on each thread: for device memory it must make the device current
};
std::unique_ptr<IoEngine> make_cufile_engine(const IoOptions& options, std::string& why, const CuFileOptions& with = {});

}  // namespace terrace
