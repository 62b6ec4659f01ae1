// The pool on std::thread: all synchronisation is visible to ThreadSanitizer.
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <terrace/core/device/thread_pool.h>
#include <terrace/core/machine/cores.h>
#include <terrace/core/machine/machine.h>

namespace terrace {

struct ThreadPool::Impl {
  // One parallel_for. It lives on its caller's stack, which waits until no helper is inside.
  struct Job {
    std::int64_t count = 0;
    const std::function<void(std::int64_t)>* task = nullptr;
    std::int64_t next = 0;  // the first index that no thread has taken
    int helpers = 0;        // workers that work on the job
    std::exception_ptr error;
  };

  Impl(int n, const std::vector<int>& cores) : threads(n), place(machine::work_place(cores)) {
    try {
      for (int i = 1; i < n; ++i)
        workers.emplace_back([this] {
          machine::go_to(place);
          work();
        });
    } catch (...) {  // too many threads for this process
      stop();
      throw;
    }
  }
  ~Impl() { stop(); }
  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    job_added.notify_all();
    for (auto& w : workers) w.join();
  }

  // Newest job first: a nested loop ends before its parent continues.
  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      job_added.wait(lock, [this] { return stopping || !jobs.empty(); });
      if (jobs.empty()) return;
      Job& job = *jobs.back();
      ++job.helpers;
      drain(job, lock);
      if (--job.helpers == 0) helper_left.notify_all();
    }
  }

  // Takes indices until none is left; called and left with the lock held.
  void drain(Job& job, std::unique_lock<std::mutex>& lock) {
    while (job.next < job.count) {
      const auto i = job.next++;
      if (job.next == job.count) std::erase(jobs, &job);
      lock.unlock();
      std::exception_ptr error;
      try {
        (*job.task)(i);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error && !job.error) {
        job.error = error;
        job.next = job.count;  // skips the tasks that have not started
        std::erase(jobs, &job);
      }
    }
  }

  void run(std::int64_t count, const std::function<void(std::int64_t)>& task) {
    const machine::WorkVisit caller(place);
    Job job;
    job.count = count;
    job.task = &task;
    std::unique_lock lock(mutex);
    jobs.push_back(&job);
    job_added.notify_all();
    drain(job, lock);
    // Helpers wait only for jobs nested more deeply than this one, so this wait ends.
    helper_left.wait(lock, [&] { return job.helpers == 0; });
    if (job.error) std::rethrow_exception(job.error);
  }

  const int threads;
  const std::shared_ptr<const machine::WorkPlace> place;
  std::mutex mutex;
  std::condition_variable job_added, helper_left;
  std::deque<Job*> jobs;  // only those with indices left
  bool stopping = false;
  std::vector<std::thread> workers;
};

ThreadPool::ThreadPool(int threads, const std::vector<int>& cores)
    : impl_(std::make_unique<Impl>(threads > 0 ? threads : usable_cores(cores), cores)) {}
ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return impl_->threads; }

void ThreadPool::parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  if (count == 1 || impl_->threads == 1) {
    for (std::int64_t i = 0; i < count; ++i) task(i);
  } else if (count > 1) {
    impl_->run(count, task);
  }
}

}  // namespace terrace
