// Numbers of one type as numbers of another: exact, or rounded once to nearest, ties to even.
//
// Threads: any. Errors: none.
#pragma once

#include <cstddef>
#include <span>

#include <terrace/core/math/dtype.h>

namespace terrace::lm {

// To and From: float, double or bf16, and fp16 to convert from. `from` has as many numbers as `to`, at any address.
template <class To, class From>
void convert(std::span<To> to, const std::byte* from);

}  // namespace terrace::lm
