// A queue between two threads: one pushes and one takes, in order. After close(), take() returns nothing once the queue is
// empty.
//
// Owner: the owner of the consumer thread. Threads: push() and close() from any, take() from one. Errors: none.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace terrace::cuda {

template <class T>
class WorkQueue {
 public:
  void push(T item) {
    {
      const std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
    }
    changed_.notify_one();
  }
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_one();
  }
  std::optional<T> take() {  // nothing: the queue is closed and empty
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !items_.empty(); });
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace terrace::cuda
