// Leaving one stack for another. For Fibers: x86-64 saves six registers (stacks_x86_64.cpp), other processors go through the C
// library, which asks the kernel about signals at every switch (stacks_ucontext.cpp).
//
// Threads: one; a stack that was left on one thread is not entered on another.
#pragma once

#include <cstddef>
#include <memory>

namespace terrace::test {

// Where a stack was left.
class Place {
 public:
  Place();
  ~Place();
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  // To enter it is to call enter(argument), which must not return, on this memory.
  void begin(std::byte* stack, std::size_t bytes, void (*enter)(void*), void* argument);
  // Leaves the running stack here and goes to where `to` was left.
  void leave_for(Place& to);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace::test
