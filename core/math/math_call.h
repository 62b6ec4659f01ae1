// A call of one of Math's operations as a value. Implementations of Math and wrappers around one treat all operations alike
// with visit(), instead of with a function for each.
//
// Owner:   a call owns its arguments, but not the bytes of its tensors.
// Threads: values.
// Errors:  none. The operands of a call are already checked (math.cpp).
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>

#include <terrace/core/math/math.h>

namespace terrace::math {

enum class MathOperation : std::uint8_t {
#define TERRACE_OPERATION(name, outputs) name,
#include <terrace/core/math/operation_list.inl>
};

// Some call; visit() and call_if() give its arguments.
struct MathCall {
  const MathOperation operation;
};

template <auto function>
struct MathOperationFacts;  // what the list says
#define TERRACE_OPERATION(name, outputs)                             \
  template <>                                                        \
  struct MathOperationFacts<&Math::name> {                           \
    static constexpr MathOperation kOperation = MathOperation::name; \
    static constexpr const char* kName = #name;                      \
    static constexpr int kOutputs = outputs;                         \
  };
#include <terrace/core/math/operation_list.inl>

// CallOf<&Math::norm>: the arguments of a call of norm().
template <auto function, class Type = decltype(function)>
struct CallOf;
template <auto function, class... Arguments>
struct CallOf<function, void (Math::*)(Stream&, Arguments...)> : MathCall, MathOperationFacts<function> {
  // The type of a function that takes First before the arguments.
  template <class First>
  using Function = void(First, Arguments...);

  explicit CallOf(const std::remove_cvref_t<Arguments>&... of)
      : MathCall{MathOperationFacts<function>::kOperation}, arguments(of...) {}
  // f(arguments...)
  template <class F>
  decltype(auto) apply(F&& f) const {
    return std::apply(f, arguments);
  }

  std::tuple<std::remove_cvref_t<Arguments>...> arguments;
};

// Calls visitor(call) with the call in its own type, which is a CallOf.
template <class Visitor>
void visit(const MathCall& call, Visitor&& visitor) {
  switch (call.operation) {
#define TERRACE_OPERATION(name, outputs) \
  case MathOperation::name:              \
    return visitor(static_cast<const CallOf<&Math::name>&>(call));
#include <terrace/core/math/operation_list.inl>
  }
}

// The call, if it is one of this function; otherwise null.
template <auto function>
const CallOf<function>* call_if(const MathCall& call) {
  return call.operation == MathOperationFacts<function>::kOperation ? static_cast<const CallOf<function>*>(&call) : nullptr;
}

}  // namespace terrace::math
