// An I/O engine with a few threads; each carries out one request after another with blocking calls, which the caller provides.
//
// Owner, threads, errors: as IoEngine; `transfer` is called by several threads at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <terrace/offload/io_engine.h>

namespace terrace {

struct TransferThreads {
  std::string name = {};
  std::size_t files = 0;
  int threads = 4;
  std::function<void()> enter = {};  // once on each thread, before its first transfer; may be empty
  // Transfers the rest of a request, from `moved_bytes` on; returns bytes moved, or a negative errno.
  std::function<std::int64_t(const IoRequest&)> transfer = {};
};
std::unique_ptr<IoEngine> make_transfer_threads(TransferThreads how);

// pread or pwrite.
std::int64_t transfer_by_call(int descriptor, const IoRequest& request);

}  // namespace terrace
