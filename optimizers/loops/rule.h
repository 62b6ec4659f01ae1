// The arithmetic of an optimizer that treats every element separately: a struct from which the host's loops (elementwise.h) and
// the GPU's kernel (cuda/update_kernel.h) are made.
//
//   static constexpr const char* kName;                     // "lion"
//   static constexpr std::array<Kind, N> kStates;           // N ≤ 2
//   explicit Rule(const OptimizerSettings&);                // checks them
//   template <class A> struct Factors;                      // one step's scalars, rounded once to the arithmetic's type
//   template <class A> Factors<A> factors(const UpdateStep&, double decay) const;
//   template <class A> static void element(const Factors<A>&, A& weight, A gradient, A& state0, A& state1);
//
// element() is TERRACE_INLINE and has no branches: A is fp32, fp64 or Simd of fp32, so it uses only the four operators, the
// comparisons of simd.h, root(), fused() and choose(). Every operation (also square root and division) is rounded separately
// as IEEE says, so the instruction set only decides how many lanes run at once. All members of Factors have type A.
//
// Internal to optimizers/.
#pragma once

#include <array>

#include <terrace/optimizers/formats/each_isa.h>
#include <terrace/optimizers/loops/numbers.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/settings.h>
