// The environment variables with which a user steers the library, which reads none of them itself. Others of the program are
// read where they are used; those of launchers in launched.h.
//
// Threads: any. Errors: none.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <terrace/offload/io/io_choice.h>

namespace terrace::cli {

IoChoice io_of_environment();                   // TERRACE_IO_ENGINE
std::string attention_kernel_of_environment();  // TERRACE_ATTENTION_KERNEL
// The variable of a setting that has no flag: `io-engine` is TERRACE_IO_ENGINE. Empty for others.
std::string_view variable_of(std::string_view setting);

// machine.json for "cpu", machine-cuda-0.json for "cuda:0", in $XDG_CACHE_HOME/terrace or ~/.cache/terrace.
std::filesystem::path default_profile_path(const std::string& device = "cpu");

}  // namespace terrace::cli
