// Fibers: functions with separate stacks that switch to each other. Every switch is reported to the sanitizers.
//
// Owner:   a Fibers owns its stacks, and leaves them to the next one of the thread. An abandoned run is not unwound, so its
//          functions must not own memory.
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

  // Called from outside: starts all fibers, where fiber i runs body(i), switches to fiber `first`, and returns when a fiber
  // switches to kCaller. `body` must neither return nor throw; its last action is a switch.
  void run(int first, const std::function<void(int)>& body);
  // Called from a fiber: switches to another one, or to the caller.
  void switch_to(int fiber);
  [[nodiscard]] int current() const { return current_; }

 private:
  struct Fiber;
  static void enter(void* fibers);

  class Stacks;
  static thread_local std::unique_ptr<Stacks> spare_stacks;  // of the thread's previous Fibers

  std::unique_ptr<Stacks> stacks_;
  std::unique_ptr<Fiber[]> fibers_;  // first the caller's, then one per fiber
  int count_;
  int current_ = kCaller;
  const std::function<void(int)>* body_ = nullptr;
};

}  // namespace terrace::test
