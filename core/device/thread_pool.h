// The one thread pool for all computing: oneTBB in normal builds, or a small std::thread pool for ThreadSanitizer, which cannot
// see into the packaged oneTBB. CMake chooses (TERRACE_POOL=tbb|std).
//
// Owner:   main.
// Threads: parallel_for may be called from any thread, also nested; the caller takes part in the work.
// Errors:  the first exception thrown by a task is rethrown to the caller after all tasks have ended.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace terrace {

class ThreadPool {
 public:
  // `threads` 0: one per core that the pool may use. `cores`: the pool's threads stay on these cores, and so does a caller
  // while it takes part; empty: any core that this process may use.
  explicit ThreadPool(int threads, const std::vector<int>& cores = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const;
  // Calls task(i) once for each i in [0, count). Any thread may run any i; results must not depend on it.
  void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& task);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
