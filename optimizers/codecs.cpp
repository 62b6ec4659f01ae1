#include <terrace/optimizers/codecs.h>

#include <bit>

#include <terrace/optimizers/bf16_bits.h>
#include <terrace/optimizers/random_half.h>

namespace terrace {
namespace {

using Half = Codecs::Half;

// A body becomes a function for each instruction set.
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

constexpr std::int64_t kBlocks = 32, kAtOnce = 8 * kBlocks;
TERRACE_INLINE void draw(Half* out, std::uint64_t seed, std::uint64_t stream, std::uint64_t block) {
  alignas(64) std::uint32_t x[4][kBlocks];
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    std::uint32_t a, b, c, d;
    random_words(a, b, c, d, seed, stream, block + i);
    x[0][i] = a;
    x[1][i] = b;
    x[2][i] = c;
    x[3][i] = d;
  }
  alignas(64) std::uint32_t words[4 * kBlocks];
  for (std::int64_t i = 0; i < kBlocks; ++i)
    for (std::int64_t word = 0; word < 4; ++word) words[4 * i + word] = x[word][i];
  static_assert(std::endian::native == std::endian::little);  // a word's lower half comes first
  __builtin_memcpy(out, words, sizeof words);
}

TERRACE_INLINE void round_randomly(Half* __restrict to, const float* __restrict from, std::int64_t count,
                                   const RandomBits& bits) {
  alignas(64) Half drawn[kAtOnce];
  for (std::int64_t done = 0; done < count;) {
    const std::uint64_t element = bits.first + static_cast<std::uint64_t>(done);
    const auto skip = static_cast<std::int64_t>(element % 8);
    draw(drawn, bits.seed, bits.stream, element / 8);
    const std::int64_t n = kAtOnce - skip < count - done ? kAtOnce - skip : count - done;
    const float* __restrict in = from + done;
    Half* __restrict out = to + done;
    for (std::int64_t i = 0; i < n; ++i) {
      out[i] = stochastic_to_bf16(in[i], drawn[skip + i]);
    }
    done += n;
  }
}
TERRACE_EACH_ISA(round_randomly, (Half * to, const float* from, std::int64_t count, const RandomBits& bits),
                 (to, from, count, bits));

}  // namespace

constinit const Codecs kCodecs{.widen = k_widen,
                               .round_weight = k_round_weight,
                               .round_state = k_round_state,
                               .join = k_join,
                               .split = k_split,
                               .round_randomly = k_round_randomly};

}  // namespace terrace
