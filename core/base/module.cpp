#include <terrace/core/base/module.h>

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace::base {
namespace {

// Read here and not by the program, as the dynamic linker reads LD_LIBRARY_PATH: where the modules of an installation lie is
// known to those who installed it, in every process that loads one.
std::vector<std::string> places() {
  if (const char* const folder = std::getenv("TERRACE_MODULE_PATH"); folder && *folder) return {folder};
  std::vector<std::string> folders;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  folders.push_back(program.string());
  folders.push_back((program.parent_path() / "lib" / "terrace").string());
  if (constexpr std::string_view build = TERRACE_MODULE_BUILD_FOLDER; !build.empty()) folders.emplace_back(build);
  folders.emplace_back(TERRACE_MODULE_INSTALL_FOLDER);
  return folders;
}

std::string file_of(const std::string& folder, const std::string& name) { return fmt::format("{}/{}.so", folder, name); }

}  // namespace

bool has_module(const std::string& name) {
  std::error_code error;
  return std::ranges::any_of(places(),
                             [&](const auto& folder) { return std::filesystem::exists(file_of(folder, name), error); });
}

void* load_module(const std::string& name, const char* entry, const std::string& mend) {
  std::string tried;
  for (const auto& folder : places()) {
    const auto path = file_of(folder, name);
    if (void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      if (void* const address = dlsym(module, entry)) return address;
    }
    tried += std::string("\n  ") + dlerror();
  }
  throw Error(fmt::format("the module {0} cannot be loaded{2}\n  {1}, or set TERRACE_MODULE_PATH to the folder of {0}.so", name,
                          mend, tried),
              ErrorKind::missing);
}

}  // namespace terrace::base
