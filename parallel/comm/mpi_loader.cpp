#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/core/error.h>
#include <terrace/parallel/comm/mpi.h>
#include <terrace/parallel/comm/transport.h>

namespace terrace {
namespace {

using Make = Transport* (*)(const MpiOptions*);

// The module stands beside the program, in its installation, or where this library was built or installed.
std::vector<std::string> places() {
  std::vector<std::string> folders;
  if (const char* const folder = std::getenv("TERRACE_MODULE_PATH")) folders.emplace_back(folder);
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  folders.push_back(program.string());
  folders.push_back((program.parent_path() / "lib" / "terrace").string());
  folders.emplace_back(TERRACE_MODULE_BUILD_FOLDER);
  folders.emplace_back(TERRACE_MODULE_INSTALL_FOLDER);
  return folders;
}

Make load() {
  std::string tried;
  for (const auto& folder : places()) {
    const auto path = folder + "/terrace_mpi.so";
    if (void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {  // stays: MPI is finalised at exit
      if (auto* const make = reinterpret_cast<Make>(dlsym(module, "terrace_mpi_transport"))) return make;
    }
    tried += std::string("\n  ") + dlerror();
  }
  throw Error(
      "the MPI module cannot be loaded; install libopenmpi-dev and openmpi-bin and build terrace again, or set "
      "TERRACE_MODULE_PATH to the folder of terrace_mpi.so" +
          tried,
      Exit::hardware_missing);
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const MpiOptions& options) {
  static const Make make = load();
  return make_communicator(std::shared_ptr<Transport>(make(&options)));
}

}  // namespace terrace
