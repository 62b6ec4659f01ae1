#include <terrace/optimizers/formats/dynamic8_loops.h>
#include <terrace/optimizers/formats/dynamic8_map.h>

#include <bit>

namespace terrace::rules::dynamic8 {
namespace {

constexpr Map kSigned = make_map<Sign::both>(), kUnsigned = make_map<Sign::none>();
// Every boundary was reached, so no interval has two boundaries.
static_assert(kSigned.steps[kLast - kFirst] == 128 << 16 && kUnsigned.steps[kLast - kFirst] == 255 << 16);
// Smaller magnitudes are looked up in the first interval, which must give rank 0.
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

// Several simple loops, so that all of them vectorise except the look-up, which would be slower with gathers.
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

TERRACE_INLINE void decode_any(Sign sign, float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks) {
  if (sign == Sign::both) return decode_blocks<Sign::both>(to, codes, scales, blocks);
  decode_blocks<Sign::none>(to, codes, scales, blocks);
}
TERRACE_INLINE void encode_any(Sign sign, std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  if (sign == Sign::both) return encode_blocks<Sign::both>(codes, scales, from, blocks);
  encode_blocks<Sign::none>(codes, scales, from, blocks);
}
void decode_baseline(Sign sign, float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks) {
  decode_any(sign, to, codes, scales, blocks);
}
TERRACE_AVX2 void decode_avx2(Sign sign, float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks) {
  decode_any(sign, to, codes, scales, blocks);
}
void encode_baseline(Sign sign, std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  encode_any(sign, codes, scales, from, blocks);
}
TERRACE_AVX2 void encode_avx2(Sign sign, std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  encode_any(sign, codes, scales, from, blocks);
}
constexpr EachIsa<DecodeBlocks> kDecode{decode_baseline, decode_avx2, decode_avx512, decode_avx512vbmi};
constexpr EachIsa<EncodeBlocks> kEncode{encode_baseline, encode_avx2, encode_avx512, encode_avx512vbmi};

}  // namespace

const Map& map_of(Sign sign) { return sign == Sign::both ? kSigned : kUnsigned; }

void decode(Isa isa, Sign sign, float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks) {
  kDecode.of(isa)(sign, to, codes, scales, blocks);
}

void encode(Isa isa, Sign sign, std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  kEncode.of(isa)(sign, codes, scales, from, blocks);
}

}  // namespace terrace::rules::dynamic8
