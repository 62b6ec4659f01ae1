#include <terrace/tests/support/gpu/stacks.h>

// Preserves what a function may expect after a call (System V ABI): six registers and the stack. The floating-point modes never
// change. A new stack starts with its argument and its function in two of the registers.
extern "C" void terrace_switch_stacks(void** left, void* entered);
extern "C" void terrace_begin_stack();
asm(R"(
.text
.p2align 4
.type terrace_switch_stacks, @function
terrace_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size terrace_switch_stacks, . - terrace_switch_stacks
.type terrace_begin_stack, @function
terrace_begin_stack:
  movq %r12, %rdi
  call *%rbx
  ud2
.size terrace_begin_stack, . - terrace_begin_stack
)");

namespace terrace::test {

struct Place::State {
  void* top = nullptr;
};

Place::Place() : state_(std::make_unique<State>()) {}
Place::~Place() = default;

void Place::begin(std::byte* stack, std::size_t bytes, void (*enter)(void*), void* argument) {
  auto* const end = reinterpret_cast<void**>(stack + bytes - 16);  // aligned to 16 at the call
  void** top = end;
  *--top = reinterpret_cast<void*>(&terrace_begin_stack);
  *--top = nullptr;                         // rbp
  *--top = reinterpret_cast<void*>(enter);  // rbx
  *--top = argument;                        // r12
  for (int i = 0; i < 3; ++i) *--top = nullptr;
  state_->top = top;
}

void Place::leave_for(Place& to) { terrace_switch_stacks(&state_->top, to.state_->top); }

}  // namespace terrace::test
