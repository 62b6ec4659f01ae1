#include <terrace/core/cuda/cudnn/library.h>

#include <dlfcn.h>

#include <array>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace::cuda::cudnn {
namespace {

const std::string kInstalled = "/usr/local/cuda/lib64/";

template <class Function>
bool find(void* library, const char* name, Function*& function, std::string& why) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (!function) why = fmt::format("it has no function {}, so it is not cuDNN 9", name);
  return function != nullptr;
}

}  // namespace

std::optional<Library> load_library(std::string& why, const std::string& file) {
  void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* const error = ::dlerror();
    why = error ? error : file + " cannot be loaded";
    if (file.find('/') == std::string::npos) handle = ::dlopen((kInstalled + file).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (!handle) return std::nullopt;
  Library l;
  const bool complete =
      find(handle, "cudnnGetVersion", l.version_number, why) && find(handle, "cudnnGetErrorString", l.name_of_status, why) &&
      find(handle, "cudnnGetLastErrorString", l.last_error, why) && find(handle, "cudnnCreate", l.create_handle, why) &&
      find(handle, "cudnnDestroy", l.destroy_handle, why) && find(handle, "cudnnSetStream", l.set_stream, why) &&
      find(handle, "cudnnBackendCreateDescriptor", l.create, why) &&
      find(handle, "cudnnBackendDestroyDescriptor", l.destroy, why) && find(handle, "cudnnBackendFinalize", l.finalize, why) &&
      find(handle, "cudnnBackendSetAttribute", l.set, why) && find(handle, "cudnnBackendGetAttribute", l.get, why) &&
      find(handle, "cudnnBackendExecute", l.execute, why);
  if (!complete) return std::nullopt;
  if (l.version_number() < static_cast<std::size_t>(kOldestVersion)) {
    why = fmt::format("it is cuDNN {}, but sums in one order need 9.11 or later", l.version());
    return std::nullopt;
  }
  return l;
}

std::string Library::version() const {
  const auto number = version_number();
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

std::string Library::describe(int status, const std::string& call) const {
  std::array<char, 1024> more{};
  last_error(more.data(), more.size() - 1);
  std::string text = fmt::format("cuDNN {}: {}: {}", version(), call, name_of_status(status));
  if (more.front() != '\0') text += fmt::format("\n  {}", more.data());
  return text;
}

void Library::check(int status, const std::string& call) const {
  if (status != kSuccess) throw Error(describe(status, call));
}

}  // namespace terrace::cuda::cudnn
