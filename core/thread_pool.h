// The one thread pool for all computing. oneTBB in normal builds; a small std::thread pool for ThreadSanitizer, which
// cannot see into the packaged oneTBB. Both behind this class, chosen by CMake (TERRACE_POOL=tbb|std).
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
  // 0: one for each core that it may use. `cores`: its threads stay on these, its callers while they take part; empty: the
  // kernel's choice of what this process may use.
  explicit ThreadPool(int threads, const std::vector<int>& cores = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const;
  // Calls task(i) once for each i in [0, count). Which thread runs which i is free; results must not depend on it.
  void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& task);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
