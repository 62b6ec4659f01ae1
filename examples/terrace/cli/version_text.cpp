#include <terrace/examples/terrace/cli/version_text.h>

#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/module.h>
#include <terrace/core/base/version.h>
#include <terrace/core/device/cuda_modules.h>
#include <terrace/examples/terrace/cli/build_facts.h>

namespace terrace::cli {
namespace {

std::string cuda_modules_here() {
  std::vector<std::string> names;
  for (const auto& module : device::cuda_modules())
    if (base::has_module(module.name())) names.push_back(module.name());
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string version_line() { return fmt::format("terrace {}", version()); }

std::string version_text() {
  auto text = version_line();
  const auto add = [&](std::string_view name, std::string_view value) {
    text += fmt::format("\n{:<14} {}", name, value.empty() ? "left out" : value);
  };
  const auto& facts = build_facts();
  add("commit", build_commit());
  add("compiler", facts.compiler);
  for (const auto& library : facts.libraries) add(library.name, library.version);
  const auto cuda = cuda_modules_here();
  add("CUDA", cuda);
  add("NCCL", facts.nccl && !cuda.empty() ? "in the CUDA module" : "");
  add("MPI", base::has_module("terrace_mpi") ? "terrace_mpi" : "");
  return text;
}

}  // namespace terrace::cli
