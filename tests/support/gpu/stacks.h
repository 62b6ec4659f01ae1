// Switches between stacks, for Fibers. On x86-64 six registers are saved (stacks_x86_64.cpp); on other processors the C library
// is used, which makes a system call for signals at every switch (stacks_ucontext.cpp).
//
// Threads: one; a stack must be entered again on the thread that left it.
#pragma once

#include <cstddef>
#include <memory>

namespace terrace::test {

// The point at which a stack was left.
class Place {
 public:
  Place();
  ~Place();
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  // Prepares a new stack in this memory: entering it calls enter(argument), which must not return.
  void begin(std::byte* stack, std::size_t bytes, void (*enter)(void*), void* argument);
  // Leaves the running stack here and continues where `to` was left.
  void leave_for(Place& to);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace::test
