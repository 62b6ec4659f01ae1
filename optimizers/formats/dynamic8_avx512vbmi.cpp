#include <terrace/optimizers/formats/dynamic8_loops.h>

#include <cstring>

#include <terrace/optimizers/formats/dynamic8_vbmi.h>

namespace terrace::rules::dynamic8 {

namespace {

template <Sign kSign>
TERRACE_AVX512VBMI void decode_blocks(float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    const __m512 scale = _mm512_set1_ps(scales[b]);
#pragma GCC unroll 1
    for (std::int64_t i = b * kBlockElements; i < (b + 1) * kBlockElements; i += kAtOnce)
      store64(to + i, decode64<kSign>(codes + i, scale));
  }
}

template <Sign kSign>
TERRACE_AVX512VBMI void encode_block(std::uint8_t* codes, float* scale, const float* from) {
  __m512i greatest_magnitudes = _mm512_setzero_si512();
  for (std::int64_t i = 0; i < kBlockElements; i += kAtOnce)
    greatest_magnitudes = greatest_of(greatest_magnitudes, load64(from + i));
  const std::uint32_t greatest = _mm512_reduce_max_epu32(greatest_magnitudes);
  if (has_no_codes(greatest)) {
    std::memset(codes, code_of_zero<kSign>(), kBlockElements);
    *scale = scale_without_codes(greatest);
    return;
  }
  *scale = scale_of(greatest);
  const __m512 inverse = _mm512_set1_ps(1.0F / *scale);
  Guessed guessed[kBlockElements / kAtOnce];
  for (std::int64_t i = 0; i < kBlockElements; i += kAtOnce) guessed[i / kAtOnce] = guess64<kSign>(load64(from + i), inverse);
  for (std::int64_t i = 0; i < kBlockElements; i += kAtOnce)
    _mm512_storeu_si512(codes + i, encode64<kSign>(load64(from + i), inverse, guessed[i / kAtOnce]));
}

template <Sign kSign>
TERRACE_AVX512VBMI void encode_blocks(std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  for (std::int64_t b = 0; b < blocks; ++b)
    encode_block<kSign>(codes + b * kBlockElements, scales + b, from + b * kBlockElements);
}

}  // namespace

void decode_avx512vbmi(Sign sign, float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks) {
  if (sign == Sign::both)
    decode_blocks<Sign::both>(to, codes, scales, blocks);
  else
    decode_blocks<Sign::none>(to, codes, scales, blocks);
}

void encode_avx512vbmi(Sign sign, std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  if (sign == Sign::both)
    encode_blocks<Sign::both>(codes, scales, from, blocks);
  else
    encode_blocks<Sign::none>(codes, scales, from, blocks);
}

}  // namespace terrace::rules::dynamic8
