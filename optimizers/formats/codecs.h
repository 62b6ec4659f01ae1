// Conversions between the formats of chunks and fp32, one function per instruction set. docs/internals/optimizers.md,
// "Formats", specifies them to the bit.
//
// Internal to optimizers/. Threads: any. Arrays do not overlap.
#pragma once

#include <cstdint>

#include <terrace/optimizers/formats/each_isa.h>

namespace terrace::rules {

struct Codecs {
  using Half = std::uint16_t;
  EachIsa<void(float* to, const Half* from, std::int64_t count)> widen;         // bf16, exactly
  EachIsa<void(Half* to, const float* from, std::int64_t count)> round_weight;  // nearest, ties away from zero
  EachIsa<void(Half* to, const float* from, std::int64_t count)> round_fp16;    // a weight; nearest, ties to even
  EachIsa<void(Half* to, const float* from, std::int64_t count)> round_state;   // nearest, ties to even
  EachIsa<void(float* to, const Half* high, const Half* low, std::int64_t count)> join;
  EachIsa<void(Half* high, Half* low, const float* from, std::int64_t count)> split;
  EachIsa<void(float* to, const Half* high, const std::uint8_t* low, std::int64_t count)> join24;
  EachIsa<void(Half* high, std::uint8_t* low, const float* from, std::int64_t count)> split24;  // nearest, ties away from zero
};
extern const Codecs kCodecs;

}  // namespace terrace::rules
