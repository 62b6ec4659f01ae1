#include <terrace/optimizers/dynamic8_map.h>

#include <bit>

namespace terrace::dynamic8 {
namespace {

constexpr Map kSigned = make_map<Sign::both>(), kUnsigned = make_map<Sign::none>();
// Every boundary was met, so no interval held two.
static_assert(kSigned.steps[kLast - kFirst] >> 17 == 128 && kUnsigned.steps[kLast - kFirst] >> 17 == 255);
// What lies below the first interval is looked up there, and finds rank 0.
static_assert(kSigned.steps[0] == kNever && kUnsigned.steps[0] == kNever);

template <Sign kSign>
constexpr const Map& map_of() {
  return kSign == Sign::both ? kSigned : kUnsigned;
}

template <Sign kSign>
TERRACE_INLINE void decode_blocks(float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks) {
  const float* const values = map_of<kSign>().values;
  for (std::int64_t b = 0; b < blocks; ++b) {
    float* __restrict out = to + b * kBlockElements;
    const std::uint8_t* __restrict in = codes + b * kBlockElements;
    const float scale = scales[b];
    for (std::int64_t i = 0; i < kBlockElements; ++i) out[i] = values[in[i]] * scale;
  }
}

// One simple loop after the other, so that all vectorise but the look-up, which gathers would slow down.
template <Sign kSign>
TERRACE_INLINE void encode_block(std::uint8_t* __restrict codes, float* __restrict scale, const float* __restrict from) {
  std::uint32_t greatest = 0;
  for (std::int64_t i = 0; i < kBlockElements; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(from[i]) & 0x7fffffffU;
    greatest = greatest < magnitude ? magnitude : greatest;
  }
  if (has_no_codes(greatest)) {
    for (std::int64_t i = 0; i < kBlockElements; ++i) codes[i] = code_of_zero<kSign>();
    *scale = scale_without_codes(greatest);
    return;
  }
  const auto maximum = std::bit_cast<float>(greatest);
  *scale = maximum;
  alignas(64) std::int32_t lower[kBlockElements], step[kBlockElements];
  alignas(64) std::uint16_t interval[kBlockElements];
  for (std::int64_t i = 0; i < kBlockElements; ++i) {
    const auto magnitude = std::bit_cast<float>(std::bit_cast<std::uint32_t>(from[i]) & 0x7fffffffU);
    const auto x = std::bit_cast<std::int32_t>(magnitude / maximum);
    interval[i] = static_cast<std::uint16_t>(interval_of(x));
    lower[i] = x & 0xffff;
  }
  const std::int32_t* const steps = map_of<kSign>().steps;
  for (std::int64_t i = 0; i < kBlockElements; ++i) step[i] = steps[interval[i]];
  for (std::int64_t i = 0; i < kBlockElements; ++i) {
    const auto bits = std::bit_cast<std::int32_t>(from[i]);
    codes[i] = code_of<kSign>(bits, rank_of(step[i], lower[i]));
  }
}

template <Sign kSign>
TERRACE_INLINE void encode_blocks(std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  for (std::int64_t b = 0; b < blocks; ++b)
    encode_block<kSign>(codes + b * kBlockElements, scales + b, from + b * kBlockElements);
}

#define TERRACE_EACH_ISA(name, parameters, arguments)                \
  template <Sign kSign>                                              \
  void name##_baseline parameters {                                  \
    name<kSign> arguments;                                           \
  }                                                                  \
  template <Sign kSign>                                              \
  TERRACE_AVX2 void name##_avx2 parameters {                         \
    name<kSign> arguments;                                           \
  }                                                                  \
  template <Sign kSign>                                              \
  TERRACE_AVX512 void name##_avx512 parameters {                     \
    name<kSign> arguments;                                           \
  }                                                                  \
  template <Sign kSign>                                              \
  constexpr EachIsa<void parameters> k_##name {                      \
    name##_baseline<kSign>, name##_avx2<kSign>, name##_avx512<kSign> \
  }

TERRACE_EACH_ISA(decode_blocks, (float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks),
                 (to, codes, scales, blocks));
TERRACE_EACH_ISA(encode_blocks, (std::uint8_t * codes, float* scales, const float* from, std::int64_t blocks),
                 (codes, scales, from, blocks));

}  // namespace

const Map& map_of(Sign sign) { return sign == Sign::both ? kSigned : kUnsigned; }

void decode(Isa isa, Sign sign, float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks) {
  const auto& each = sign == Sign::both ? k_decode_blocks<Sign::both> : k_decode_blocks<Sign::none>;
  each.of(isa)(to, codes, scales, blocks);
}

void encode(Isa isa, Sign sign, std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  const auto& each = sign == Sign::both ? k_encode_blocks<Sign::both> : k_encode_blocks<Sign::none>;
  each.of(isa)(codes, scales, from, blocks);
}

}  // namespace terrace::dynamic8
