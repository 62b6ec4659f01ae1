#include <terrace/optimizers/formats/codecs.h>

#include <terrace/optimizers/formats/bf16_bits.h>

namespace terrace::rules {
namespace {

using Half = Codecs::Half;

// Compiles a body as one function for each instruction set.
#define TERRACE_EACH_ISA(name, parameters, arguments)              \
  void name##_baseline parameters { name arguments; }              \
  TERRACE_AVX2 void name##_avx2 parameters { name arguments; }     \
  TERRACE_AVX512 void name##_avx512 parameters { name arguments; } \
  constexpr EachIsa<void parameters> k_##name { name##_baseline, name##_avx2, name##_avx512 }

TERRACE_INLINE void widen(float* __restrict to, const Half* __restrict from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = widened(from[i]);
}
TERRACE_EACH_ISA(widen, (float* to, const Half* from, std::int64_t count), (to, from, count));

TERRACE_INLINE void round_weight(Half* __restrict to, const float* __restrict from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = weight_to_bf16(from[i]);
}
TERRACE_EACH_ISA(round_weight, (Half * to, const float* from, std::int64_t count), (to, from, count));

TERRACE_INLINE void round_fp16(Half* __restrict to, const float* __restrict from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = weight_to_fp16(from[i]);
}
TERRACE_EACH_ISA(round_fp16, (Half * to, const float* from, std::int64_t count), (to, from, count));

TERRACE_INLINE void round_state(Half* __restrict to, const float* __restrict from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = state_to_bf16(from[i]);
}
TERRACE_EACH_ISA(round_state, (Half * to, const float* from, std::int64_t count), (to, from, count));

TERRACE_INLINE void join(float* __restrict to, const Half* __restrict high, const Half* __restrict low, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = joined(high[i], low[i]);
  }
}
TERRACE_EACH_ISA(join, (float* to, const Half* high, const Half* low, std::int64_t count), (to, high, low, count));

TERRACE_INLINE void split(Half* __restrict high, Half* __restrict low, const float* __restrict from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    high[i] = weight_to_bf16(from[i]);
    low[i] = lower_half(from[i]);
  }
}
TERRACE_EACH_ISA(split, (Half * high, Half* low, const float* from, std::int64_t count), (high, low, from, count));

TERRACE_INLINE void join24(float* __restrict to, const Half* __restrict high, const std::uint8_t* __restrict low,
                           std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = joined24(high[i], low[i]);
}
TERRACE_EACH_ISA(join24, (float* to, const Half* high, const std::uint8_t* low, std::int64_t count), (to, high, low, count));

TERRACE_INLINE void split24(Half* __restrict high, std::uint8_t* __restrict low, const float* __restrict from,
                            std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float weight = weight_to_24(from[i], kNearest24);
    high[i] = weight_to_bf16(weight);
    low[i] = low_byte(weight);
  }
}
TERRACE_EACH_ISA(split24, (Half * high, std::uint8_t* low, const float* from, std::int64_t count), (high, low, from, count));

}  // namespace

constinit const Codecs kCodecs{.widen = k_widen,
                               .round_weight = k_round_weight,
                               .round_fp16 = k_round_fp16,
                               .round_state = k_round_state,
                               .join = k_join,
                               .split = k_split,
                               .join24 = k_join24,
                               .split24 = k_split24};

}  // namespace terrace::rules
