// Fibers: functions with a stack of their own that hand the processor to each other. The sanitizers are told of every switch.
//
// Owner:   a Fibers owns its stacks, and leaves them to the thread's next one. A run that was left has no frame to unwind, so
//          its functions own no memory.
// Threads: one.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace terrace::test {

class Fibers {
 public:
  static constexpr int kCaller = -1;

  explicit Fibers(int count);
  ~Fibers();
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  // From the caller: begins every fiber anew, `body(i)` being what fiber i runs, goes to fiber `first` and comes back when a
  // fiber switches to kCaller. `body` must not return or throw: its last act is a switch.
  void run(int first, const std::function<void(int)>& body);
  // From a fiber: goes to another one, or to the caller.
  void switch_to(int fiber);
  [[nodiscard]] int current() const { return current_; }

 private:
  struct Fiber;
  static void enter(void* fibers);

  class Stacks;
  static thread_local std::unique_ptr<Stacks> spare_stacks;  // of the thread's last fibers

  std::unique_ptr<Stacks> stacks_;
  std::unique_ptr<Fiber[]> fibers_;  // the caller's, then one each
  int count_;
  int current_ = kCaller;
  const std::function<void(int)>* body_ = nullptr;
};

}  // namespace terrace::test
