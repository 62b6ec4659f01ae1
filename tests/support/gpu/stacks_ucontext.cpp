#include <terrace/tests/support/gpu/stacks.h>

#include <ucontext.h>

#include <cstdint>

namespace terrace::test {

struct Place::State {
  ucontext_t context = {};
  void (*enter)(void*) = nullptr;
  void* argument = nullptr;
  static void start(unsigned high, unsigned low) {
    auto& state = *reinterpret_cast<State*>(static_cast<std::uintptr_t>(high) << 32 | low);
    state.enter(state.argument);
  }
};

Place::Place() : state_(std::make_unique<State>()) {}
Place::~Place() = default;

void Place::begin(std::byte* stack, std::size_t bytes, void (*enter)(void*), void* argument) {
  auto& s = *state_;
  s.enter = enter;
  s.argument = argument;
  ::getcontext(&s.context);
  s.context.uc_stack.ss_sp = stack;
  s.context.uc_stack.ss_size = bytes;
  s.context.uc_link = nullptr;
  const auto at = reinterpret_cast<std::uintptr_t>(&s);
  ::makecontext(&s.context, reinterpret_cast<void (*)()>(&State::start), 2, static_cast<unsigned>(at >> 32),
                static_cast<unsigned>(at));
}

void Place::leave_for(Place& to) { ::swapcontext(&state_->context, &to.state_->context); }

}  // namespace terrace::test
