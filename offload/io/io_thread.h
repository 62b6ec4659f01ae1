// An I/O engine on a thread of its own, for callers on any threads.
//
// Owner:   the caller. A request belongs to the caller and must stay at its address until `done` has run.
// Threads: submit() from any, also from `done`, which runs on the engine's thread and must not throw.
// Errors:  the constructor's are those of make_io_engine(); a request's come as in io_engine.h.
#pragma once

#include <memory>

#include <terrace/offload/io/io_engine.h>

namespace terrace::io {

class IoThread {
 public:
  explicit IoThread(const IoOptions& options);
  ~IoThread();  // waits for all requests
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  void submit(IoRequest& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace::io
