// The CPU's operations as plain functions: each takes a Compute and then the arguments of the operation of that name in math.h.
// Operands are already checked; work runs on the calling thread and the pool. cpu/*.cpp define them, one file for each family.
#pragma once

#include <terrace/core/math/cpu/compute.h>
#include <terrace/core/math/math_call.h>

namespace terrace::cpu {

#define TERRACE_OPERATION(name, outputs) math::CallOf<&Math::name>::Function<Compute> name;
#include <terrace/core/math/operation_list.inl>

// Runs a call by the function of its name.
#define TERRACE_OPERATION(name, outputs)                                             \
  inline void run(Compute compute, const math::CallOf<&Math::name>& call) {          \
    call.apply([&](const auto&... arguments) { cpu::name(compute, arguments...); }); \
  }
#include <terrace/core/math/operation_list.inl>

}  // namespace terrace::cpu
