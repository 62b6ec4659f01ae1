// Codes of 8-bit states, 64 at once in registers: with AVX-512 VBMI one instruction looks up 64 entries of a table of 128
// bytes, while a gather takes as long as loading 16 numbers one by one.
//
// Four vectors hold 64 numbers in the order of memory.
//
// Internal to optimizers/. Threads: any. x86 only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include <terrace/optimizers/formats/dynamic8_planes.h>

#define TERRACE_VBMI_INLINE TERRACE_AVX512VBMI inline __attribute__((always_inline))

namespace terrace::rules::dynamic8 {

inline constexpr std::int64_t kAtOnce = 64;

struct Four {
  __m512 v[4];
};

// Unpacking works within 128 bits: bytes 0 to 3 of each 128 bits become the first vector's numbers, bytes 4 to 7 the second's,
// and so on. Returns the place in the row for a byte of a plane.
constexpr std::size_t unpacked_from(std::size_t byte) { return byte % 16 / 4 * 16 + byte / 16 * 4 + byte % 4; }

template <class T, std::size_t kCount>
struct alignas(64) Places {
  T at[kCount] = {};
  TERRACE_VBMI_INLINE __m512i load() const { return _mm512_load_si512(at); }
};
template <class T, std::size_t kCount, class Of>
constexpr Places<T, kCount> make_places(const Of& of) {
  Places<T, kCount> places;
  for (std::size_t i = 0; i < kCount; ++i) places.at[i] = static_cast<T>(of(i));
  return places;
}
inline constexpr auto kToPlanes = make_places<std::uint8_t, 64>(unpacked_from);
inline constexpr auto kUpperWords = make_places<std::uint16_t, 32>([](std::size_t word) { return 2 * word + 1; });
inline constexpr auto kUpperBytes = make_places<std::uint8_t, 64>([](std::size_t byte) { return 2 * byte + 1; });
inline constexpr auto kUpperBytesToPlanes =
    make_places<std::uint8_t, 64>([](std::size_t byte) { return 2 * unpacked_from(byte) + 1; });

TERRACE_VBMI_INLINE __m512i bytes_of_all(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }

// Looks up one byte of each of 64 entries.
TERRACE_VBMI_INLINE __m512i look_up_128(const std::uint8_t* plane, __m512i entries) {
  return _mm512_permutex2var_epi8(_mm512_load_si512(plane), entries, _mm512_load_si512(plane + 64));
}
template <Sign kSign>
TERRACE_VBMI_INLINE __m512i look_up(const std::uint8_t (&plane)[kPlaneBytes<kSign>], __m512i entries) {
  if constexpr (kSign == Sign::both)
    return look_up_128(plane, entries);
  else
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(entries), look_up_128(plane, entries), look_up_128(plane + 128, entries));
}

// The planes' numbers, in the order of unpacked_from().
TERRACE_VBMI_INLINE Four unpacked(const __m512i (&plane)[4]) {
  const __m512i lower01 = _mm512_unpacklo_epi8(plane[0], plane[1]), upper01 = _mm512_unpackhi_epi8(plane[0], plane[1]);
  const __m512i lower23 = _mm512_unpacklo_epi8(plane[2], plane[3]), upper23 = _mm512_unpackhi_epi8(plane[2], plane[3]);
  return {{_mm512_castsi512_ps(_mm512_unpacklo_epi16(lower01, lower23)),
           _mm512_castsi512_ps(_mm512_unpackhi_epi16(lower01, lower23)),
           _mm512_castsi512_ps(_mm512_unpacklo_epi16(upper01, upper23)),
           _mm512_castsi512_ps(_mm512_unpackhi_epi16(upper01, upper23))}};
}

template <Sign kSign>
TERRACE_VBMI_INLINE Four decode64(const std::uint8_t* codes, __m512 scale) {
  const auto& table = kMagnitudePlanes<kSign>.bytes;
  const __m512i code = _mm512_permutexvar_epi8(kToPlanes.load(), _mm512_loadu_si512(codes));
  __m512i plane[4];
  if constexpr (kSign == Sign::both) {
    const __m512i rank = _mm512_sub_epi8(code, bytes_of_all(127)), magnitude = _mm512_abs_epi8(rank);
    for (std::size_t i = 0; i < 4; ++i) plane[i] = look_up<kSign>(table[i], magnitude);
    constexpr int kOrBoth = 0xf8;  // a | (b & c)
    plane[3] = _mm512_ternarylogic_epi32(plane[3], rank, bytes_of_all(0x80), kOrBoth);
    const __mmask64 one = _mm512_movepi8_mask(magnitude);  // 128 is not a signed 8-bit number
    plane[2] = _mm512_mask_mov_epi8(plane[2], one, bytes_of_all(0x80));
    plane[3] = _mm512_mask_mov_epi8(plane[3], one, bytes_of_all(0x3f));
  } else {
    for (std::size_t i = 0; i < 4; ++i) plane[i] = look_up<kSign>(table[i], code);
  }
  Four numbers = unpacked(plane);
  for (auto& v : numbers.v) v = _mm512_mul_ps(v, scale);
  return numbers;
}

// The guessed ranks times 256 (Segments) of 32 cells.
template <Sign kSign>
TERRACE_VBMI_INLINE __m512i guess(__m512i upper_halves) {
  const auto& s = kSegments<kSign>;
  const __m512i cell = _mm512_subs_epu16(upper_halves, _mm512_set1_epi16(kFirst));
  const __m512i offset = _mm512_permutexvar_epi16(_mm512_srli_epi16(cell, Segments::kOctaveBits), _mm512_load_si512(s.offset));
  const __m512i segment = _mm512_srli_epi16(_mm512_add_epi16(cell, offset), Segments::kOctaveBits);
  return _mm512_add_epi16(_mm512_mullo_epi16(cell, _mm512_permutexvar_epi16(segment, _mm512_load_si512(s.slope))),
                          _mm512_permutexvar_epi16(segment, _mm512_load_si512(s.base)));
}

TERRACE_VBMI_INLINE __mmask64 in_a_row(__mmask16 a, __mmask16 b, __mmask16 c, __mmask16 d) {
  return _mm512_kunpackd(_mm512_kunpackw(d, c), _mm512_kunpackw(b, a));
}

// Encoding has two halves, each a chain of dependent look-ups. The caller puts other work between them, because the processor
// cannot find independent work behind so many waiting instructions.
struct Guessed {
  __m512i ranks, ranks_to_planes;  // in the row's order, and in that of unpacked_from()
  __mmask64 negative;
};

// `inverse` is the inverse of the block's scale.
template <Sign kSign>
TERRACE_VBMI_INLINE Guessed guess64(const Four& from, __m512 inverse) {
  __m512i x[4];
  for (std::size_t i = 0; i < 4; ++i) x[i] = _mm512_castps_si512(_mm512_mul_ps(from.v[i], inverse));
  __m512i upper[2] = {_mm512_permutex2var_epi16(x[0], kUpperWords.load(), x[1]),
                      _mm512_permutex2var_epi16(x[2], kUpperWords.load(), x[3])};
  Guessed guessed;
  if constexpr (kSign == Sign::both)
    guessed.negative = _mm512_kunpackd(_mm512_movepi16_mask(upper[1]), _mm512_movepi16_mask(upper[0]));
  for (auto& u : upper) u = guess<kSign>(_mm512_and_si512(u, _mm512_set1_epi16(0x7fff)));
  guessed.ranks = _mm512_permutex2var_epi8(upper[0], kUpperBytes.load(), upper[1]);
  guessed.ranks_to_planes = _mm512_permutex2var_epi8(upper[0], kUpperBytesToPlanes.load(), upper[1]);
  return guessed;
}

template <Sign kSign>
TERRACE_VBMI_INLINE __m512i encode64(const Four& from, __m512 inverse, const Guessed& guessed) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), one = bytes_of_all(1);
  __m512i plane[4];
  for (std::size_t i = 0; i < 4; ++i) plane[i] = look_up<kSign>(kBoundaryPlanes<kSign>.bytes[i], guessed.ranks_to_planes);
  const Four boundary = unpacked(plane);
  __mmask16 beyond[4];
  for (std::size_t i = 0; i < 4; ++i) {
    const __m512i x = _mm512_castps_si512(_mm512_mul_ps(from.v[i], inverse));
    beyond[i] = _mm512_cmpge_epu32_mask(_mm512_and_si512(x, magnitude), _mm512_castps_si512(boundary.v[i]));
  }
  __m512i code = _mm512_mask_add_epi8(guessed.ranks, in_a_row(beyond[0], beyond[1], beyond[2], beyond[3]), guessed.ranks, one);
  if constexpr (kSign == Sign::both) {
    const __m512i zero = bytes_of_all(127);
    code = _mm512_mask_sub_epi8(_mm512_add_epi8(zero, code), guessed.negative, zero, _mm512_min_epu8(code, zero));
  } else {
    __mmask16 something[4];
    for (std::size_t i = 0; i < 4; ++i) something[i] = _mm512_test_epi32_mask(_mm512_castps_si512(from.v[i]), magnitude);
    code = _mm512_mask_max_epu8(code, in_a_row(something[0], something[1], something[2], something[3]), code, one);
  }
  return code;
}

// The bits of the greatest magnitudes, of those so far and of four more vectors.
TERRACE_VBMI_INLINE __m512i greatest_of(__m512i greatest, const Four& numbers) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i m[4];
  for (std::size_t i = 0; i < 4; ++i) m[i] = _mm512_and_si512(_mm512_castps_si512(numbers.v[i]), magnitude);
  return _mm512_max_epu32(greatest, _mm512_max_epu32(_mm512_max_epu32(m[0], m[1]), _mm512_max_epu32(m[2], m[3])));
}

TERRACE_VBMI_INLINE Four load64(const float* from) {
  Four numbers;
  for (std::int64_t v = 0; v < 4; ++v) numbers.v[v] = _mm512_loadu_ps(from + 16 * v);
  return numbers;
}
TERRACE_VBMI_INLINE void store64(float* to, const Four& numbers) {
  for (std::int64_t v = 0; v < 4; ++v) _mm512_storeu_ps(to + 16 * v, numbers.v[v]);
}

}  // namespace terrace::rules::dynamic8
