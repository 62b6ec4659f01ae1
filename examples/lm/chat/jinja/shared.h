// What several values share. A list may hold a list that holds a list, as deep as a template likes to make it, so nothing is
// destroyed within the destruction of what held it: it waits for its turn, and no stack grows.
//
// Threads: any, each with a queue of its own. Errors: std::bad_alloc from shared().
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
