#include <terrace/optimizers/dynamic8_loops.h>
#include <terrace/optimizers/dynamic8_map.h>

#include <bit>

namespace terrace::dynamic8 {
namespace {

constexpr Map kSigned = make_map<Sign::both>(), kUnsigned = make_map<Sign::none>();
// Every boundary was met, so no interval held two.
static_assert(kSigned.steps[kLast - kFirst] == 128 << 16 && kUnsigned.steps[kLast - kFirst] == 255 << 16);
// What lies below the first interval is looked up there, and finds rank 0.
static_assert(kSigned.steps[0] == 0 && kUnsigned.steps[0] == 0);

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
  *scale = scale_of(greatest);
  const float inverse = 1.0F / *scale;
  alignas(64) std::int32_t lower[kBlockElements], step[kBlockElements];
  alignas(64) std::uint16_t interval[kBlockElements];
  for (std::int64_t i = 0; i < kBlockElements; ++i) {
    const auto magnitude = std::bit_cast<float>(std::bit_cast<std::uint32_t>(from[i]) & 0x7fffffffU);
    const auto x = std::bit_cast<std::int32_t>(magnitude * inverse);
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

template <Sign kSign>
void decode_baseline(float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks) {
  decode_blocks<kSign>(to, codes, scales, blocks);
}
template <Sign kSign>
TERRACE_AVX2 void decode_avx2(float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks) {
  decode_blocks<kSign>(to, codes, scales, blocks);
}
template <Sign kSign>
void encode_baseline(std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  encode_blocks<kSign>(codes, scales, from, blocks);
}
template <Sign kSign>
TERRACE_AVX2 void encode_avx2(std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  encode_blocks<kSign>(codes, scales, from, blocks);
}

}  // namespace

const Map& map_of(Sign sign) { return sign == Sign::both ? kSigned : kUnsigned; }

void decode(Isa isa, Sign sign, float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks) {
  if (isa == Isa::avx512) return decode_avx512(sign, to, codes, scales, blocks);
  constexpr EachIsa<DecodeBlocks> kBoth{decode_baseline<Sign::both>, decode_avx2<Sign::both>, nullptr};
  constexpr EachIsa<DecodeBlocks> kNone{decode_baseline<Sign::none>, decode_avx2<Sign::none>, nullptr};
  (sign == Sign::both ? kBoth : kNone).of(isa)(to, codes, scales, blocks);
}

void encode(Isa isa, Sign sign, std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  if (isa == Isa::avx512) return encode_avx512(sign, codes, scales, from, blocks);
  constexpr EachIsa<EncodeBlocks> kBoth{encode_baseline<Sign::both>, encode_avx2<Sign::both>, nullptr};
  constexpr EachIsa<EncodeBlocks> kNone{encode_baseline<Sign::none>, encode_avx2<Sign::none>, nullptr};
  (sign == Sign::both ? kBoth : kNone).of(isa)(codes, scales, from, blocks);
}

}  // namespace terrace::dynamic8
