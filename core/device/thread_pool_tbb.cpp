// The pool on oneTBB: one arena of exactly `threads` slots, the caller's included. A pool of one thread is a loop.
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <memory>
#include <optional>

#include <terrace/core/device/thread_pool.h>
#include <terrace/core/machine/cores.h>
#include <terrace/core/machine/machine.h>

namespace terrace {

struct ThreadPool::Impl {
  Impl(int n, const std::vector<int>& cores) : threads(n), arena(n, 1), place(machine::work_place(cores)) {
    if (n > 1) limit.emplace(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(n));
  }

  const int threads;
  // For the whole process: otherwise oneTBB keeps one worker per core, whatever the arena's size. The smallest limit of all
  // pools counts, so a pool of one thread, which has no workers, sets none.
  std::optional<tbb::global_control> limit;
  tbb::task_arena arena;
  const std::shared_ptr<const machine::WorkPlace> place;  // oneTBB lends its workers to all arenas, so every task moves to it
};

ThreadPool::ThreadPool(int threads, const std::vector<int>& cores)
    : impl_(std::make_unique<Impl>(threads > 0 ? threads : usable_cores(cores), cores)) {}
ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return impl_->threads; }

void ThreadPool::parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  if (count == 1 || impl_->threads == 1) {
    for (std::int64_t i = 0; i < count; ++i) task(i);
  } else if (count > 1) {
    const auto& place = impl_->place;
    const machine::WorkVisit caller(place);
    impl_->arena.execute([&] {
      // Isolated: a thread that waits in a nested loop must not start another task of the outer loop, whose
      // thread-local scratch is in use.
      tbb::this_task_arena::isolate([&] {
        tbb::parallel_for(std::int64_t{0}, count, [&](std::int64_t i) {
          machine::go_to(place);
          task(i);
        });
      });
    });
  }
}

}  // namespace terrace
