#include <bit>
#include <cstring>

#include <immintrin.h>

#include <terrace/optimizers/formats/dynamic8_loops.h>
#include <terrace/optimizers/formats/dynamic8_map.h>

namespace terrace::rules::dynamic8 {

namespace {

constexpr std::int64_t kLanes = 16;

TERRACE_AVX512 inline std::uint32_t greatest_magnitude(const float* from) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i greatest[4] = {};  // four, so that no maximum waits for the one before
  for (std::int64_t i = 0; i < kBlockElements; i += 4 * kLanes)
    for (std::int64_t v = 0; v < 4; ++v)
      greatest[v] = _mm512_max_epu32(greatest[v], _mm512_and_si512(_mm512_loadu_si512(from + i + v * kLanes), magnitude));
  return _mm512_reduce_max_epu32(
      _mm512_max_epu32(_mm512_max_epu32(greatest[0], greatest[1]), _mm512_max_epu32(greatest[2], greatest[3])));
}

template <Sign kSign>
TERRACE_AVX512 inline __m512i codes_of(__m512i bits, __m512i magnitudes, __m512i ranks) {
  if constexpr (kSign == Sign::both) {
    const __m512i zero = _mm512_set1_epi32(127);
    const __mmask16 negative = _mm512_movepi32_mask(bits);
    const __m512i upward = _mm512_add_epi32(zero, ranks);
    return _mm512_mask_sub_epi32(upward, negative, zero, _mm512_min_epi32(ranks, zero));
  } else {
    const __mmask16 something = _mm512_test_epi32_mask(magnitudes, magnitudes);
    return _mm512_mask_max_epi32(ranks, something, ranks, _mm512_set1_epi32(1));
  }
}

template <Sign kSign>
TERRACE_AVX512 void encode_block(const Map& map, std::uint8_t* codes, float* scale, const float* from) {
  const std::uint32_t greatest = greatest_magnitude(from);
  if (has_no_codes(greatest)) {
    std::memset(codes, code_of_zero<kSign>(), kBlockElements);
    *scale = scale_without_codes(greatest);
    return;
  }
  *scale = scale_of(greatest);
  const __m512 inverse = _mm512_set1_ps(1.0F / *scale);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), first = _mm512_set1_epi32(kFirst), lower = _mm512_set1_epi32(0xffff);
#pragma GCC unroll 2
  for (std::int64_t i = 0; i < kBlockElements; i += kLanes) {
    const __m512i bits = _mm512_loadu_si512(from + i), magnitudes = _mm512_and_si512(bits, magnitude);
    const __m512i x = _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(magnitudes), inverse));
    const __m512i interval = _mm512_max_epi32(_mm512_sub_epi32(_mm512_srai_epi32(x, 16), first), _mm512_setzero_si512());
    const __m512i step = _mm512_i32gather_epi32(interval, map.steps, 4);
    const __m512i ranks = _mm512_srai_epi32(_mm512_add_epi32(step, _mm512_and_si512(x, lower)), 16);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), _mm512_cvtepi32_epi8(codes_of<kSign>(bits, magnitudes, ranks)));
  }
}

template <Sign kSign>
TERRACE_AVX512 void encode_blocks(std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  const auto& map = map_of(kSign);
  for (std::int64_t b = 0; b < blocks; ++b)
    encode_block<kSign>(map, codes + b * kBlockElements, scales + b, from + b * kBlockElements);
}

}  // namespace

TERRACE_AVX512 void decode_avx512(Sign sign, float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks) {
  const float* const values = map_of(sign).values;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const __m512 scale = _mm512_set1_ps(scales[b]);
#pragma GCC unroll 2
    for (std::int64_t i = b * kBlockElements; i < (b + 1) * kBlockElements; i += kLanes) {
      const __m512i at = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
      _mm512_storeu_ps(to + i, _mm512_mul_ps(_mm512_i32gather_ps(at, values, 4), scale));
    }
  }
}

void encode_avx512(Sign sign, std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  if (sign == Sign::both)
    encode_blocks<Sign::both>(codes, scales, from, blocks);
  else
    encode_blocks<Sign::none>(codes, scales, from, blocks);
}

}  // namespace terrace::rules::dynamic8
