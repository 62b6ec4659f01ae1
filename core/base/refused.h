// A setting, an argument or a file of settings that is not accepted: the most frequent kind of error.
//
// Owner, threads: as Error.
#pragma once

#include <string>

#include <terrace/core/base/error.h>

namespace terrace::base {

struct Refused : Error {
  explicit Refused(const std::string& what) : Error(what, ErrorKind::refused) {}
};

}  // namespace terrace::base
