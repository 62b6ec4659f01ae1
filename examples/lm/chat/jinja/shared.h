// Shared parts of values. Lists may be nested as deep as a template makes them, and destroying them recursively could overflow
// the stack. So a value that is released while another one is being destroyed waits in a queue.
//
// Threads: any; each has its own queue. Errors: std::bad_alloc from shared().
#pragma once

#include <memory>
#include <utility>

namespace terrace::lm::jinja {

class Waiting {
 public:
  virtual ~Waiting() = default;
  static void destroy_in_turn(Waiting* last) noexcept {
    thread_local Waiting* first = nullptr;
    thread_local bool busy = false;
    last->next_ = std::exchange(first, last);
    if (busy) return;
    busy = true;
    while (first != nullptr) {
      const std::unique_ptr<Waiting> one(std::exchange(first, first->next_));
    }
    busy = false;
  }

 private:
  Waiting* next_ = nullptr;
};

template <class T>
struct Holder final : Waiting {
  explicit Holder(T of) : held(std::move(of)) {}
  T held;
};

template <class T>
std::shared_ptr<T> shared(T of) {
  const std::shared_ptr<Holder<T>> holder(new Holder<T>(std::move(of)), Waiting::destroy_in_turn);
  return {holder, &holder->held};
}

}  // namespace terrace::lm::jinja
