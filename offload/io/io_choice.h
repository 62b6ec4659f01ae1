// Which engine reads and writes files, and where warnings about it and about the files go.
//
// Owner, threads: a value; see Log.
#pragma once

#include <string>

#include <terrace/core/base/log.h>

namespace terrace {

struct IoChoice {
  // "uring", "uring-sqpoll", "uring-iopoll" or "threads". Empty: io_uring if it works, else threads, with a warning.
  std::string engine = {};
  Log log = {};
};

}  // namespace terrace
