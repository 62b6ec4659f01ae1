// Writes a trace into a folder of terrace's own, where a link of that name is replaced and not followed. (Trace::write() is for
// a file that the user named.)
//
// Threads: any. Errors: as Trace::write().
#pragma once

#include <filesystem>

#include <terrace/core/base/trace.h>

namespace terrace::base {

void replace_trace(const Trace& trace, const std::filesystem::path& file);

}  // namespace terrace::base
