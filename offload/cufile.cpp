#include <terrace/offload/cufile.h>

#include <dlfcn.h>
#include <fmt/format.h>

namespace terrace {
namespace {

template <class Function>
bool find(void* library, const char* name, Function*& function, std::string& why) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (!function) why = fmt::format("it has no function {}, so it is older than CUDA 11.4", name);
  return function != nullptr;
}

}  // namespace

std::optional<CuFile> load_cufile(std::string& why, const std::string& library) {
  // Never closed: the library's own threads may run until the process ends.
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* const error = ::dlerror();
    why = error ? error : library + " cannot be loaded";
    return std::nullopt;
  }
  CuFile c;
  const bool complete =
      find(handle, "cuFileDriverOpen", c.open_driver, why) && find(handle, "cuFileHandleRegister", c.register_file, why) &&
      find(handle, "cuFileHandleDeregister", c.release_file, why) &&
      find(handle, "cuFileBufRegister", c.register_memory, why) && find(handle, "cuFileBufDeregister", c.release_memory, why) &&
      find(handle, "cuFileRead", c.read, why) && find(handle, "cuFileWrite", c.write, why);
  if (!complete) return std::nullopt;
  CuFile::Status (*ask)(int*) = nullptr;
  std::string older;  // an older library has no call for its version
  if (find(handle, "cuFileGetVersion", ask, older)) ask(&c.version);
  return c;
}

std::string describe_cufile(int error) {
  switch (error) {
    case 5001: return "the nvidia-fs driver is not loaded (5001); load it, or set allow_compat_mode in cufile.json";
    case 5004: return "nvidia-fs has an unsupported version (5004)";
    case 5007: return "GPUDirect Storage is not supported on this platform (5007)";
    case 5008: return "the file system is not supported (5008)";
    case 5018: return "files of this type are not supported (5018)";
    case 5019:
    case 5020: return "the file is not open for direct I/O (5019, 5020)";
    case 5025: return "permission denied (5025)";
    case 5034: return "cufile.json forbids GPUDirect Storage for this file (5034)";
    case 5036: return "not enough memory can be pinned (5036)";
    default: return fmt::format("cuFile's error {}", error);
  }
}

}  // namespace terrace
