// What this program was built from: the commit, the compiler and the libraries. CMake writes the values.
//
// Threads: any; constant.
#pragma once

#include <array>
#include <string_view>

namespace terrace::cli {

struct BuildFacts {
  struct Library {
    std::string_view name, version;  // empty version: the library was left out
  };
  std::string_view compiler;  // "GNU 12.2.0, Release"
  std::array<Library, 8> libraries;
  bool nccl;  // whether the CUDA module, if it was built, has NCCL
};
const BuildFacts& build_facts();

// The first twelve digits, with "+changes" behind them if tracked files differed from the commit; "unknown" if the sources were
// not a git checkout.
std::string_view build_commit();

}  // namespace terrace::cli
