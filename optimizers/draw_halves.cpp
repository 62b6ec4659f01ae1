#include <terrace/optimizers/draw_halves.h>

#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <terrace/optimizers/random_half.h>

namespace terrace {
namespace {

using Half = std::uint16_t;
static_assert(std::endian::native == std::endian::little);  // a word's lower half comes first

constexpr std::int64_t kElementsABlock = 8, kBlocksAtOnce = kDrawnAtOnce / kElementsABlock;

void draw_baseline(Half* to, std::uint64_t seed, std::uint64_t stream, std::uint64_t draw) {
  const std::uint64_t block = draw * kBlocksAtOnce;
  for (std::uint64_t i = 0; i < kBlocksAtOnce; ++i) {
    std::uint32_t words[4];
    random_words(words[0], words[1], words[2], words[3], seed, stream, block + i);
    std::memcpy(to + i * kElementsABlock, words, sizeof words);
  }
}

// A block's words a, b, c and d lie in a 64-bit lane of a vector each, and count by their lower halves only: that is all that
// the products read, and a product is the next round's word as it is. Several vectors are under way, for a round waits for its
// products.
#if defined(__x86_64__)

constexpr int kUnderWay = 4;

TERRACE_AVX512 void draw_avx512(Half* to, std::uint64_t seed, std::uint64_t stream, std::uint64_t draw) {
  const std::uint64_t block = draw * kBlocksAtOnce;
  static_assert(kBlocksAtOnce == 8 * kUnderWay);
  const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
  const __m512i first = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
  __m512i a[kUnderWay], b[kUnderWay], c[kUnderWay], d[kUnderWay];
  for (int v = 0; v < kUnderWay; ++v) {
    a[v] = _mm512_add_epi64(first, _mm512_set1_epi64(static_cast<long long>(block) + std::int64_t{8} * v));
    b[v] = _mm512_srli_epi64(a[v], 32);
    c[v] = _mm512_set1_epi64(static_cast<long long>(stream));
    d[v] = _mm512_set1_epi64(static_cast<long long>(stream >> 32));
  }
  auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const __m512i key0 = _mm512_set1_epi64(k0), key1 = _mm512_set1_epi64(k1);
#pragma GCC unroll 4
    for (int v = 0; v < kUnderWay; ++v) {
      constexpr int kXorOfThree = 0x96;
      const __m512i p0 = _mm512_mul_epu32(m0, a[v]), p1 = _mm512_mul_epu32(m1, c[v]);
      a[v] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), b[v], key0, kXorOfThree);
      b[v] = p1;
      c[v] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), d[v], key1, kXorOfThree);
      d[v] = p0;
    }
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  const __m512i lower = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0), upper = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
  for (int v = 0; v < kUnderWay; ++v) {
    const __m512i ab = _mm512_mask_blend_epi32(0xaaaa, a[v], _mm512_slli_epi64(b[v], 32));
    const __m512i cd = _mm512_mask_blend_epi32(0xaaaa, c[v], _mm512_slli_epi64(d[v], 32));
    _mm512_storeu_si512(to + 64 * v, _mm512_permutex2var_epi64(ab, lower, cd));
    _mm512_storeu_si512(to + 64 * v + 32, _mm512_permutex2var_epi64(ab, upper, cd));
  }
}

TERRACE_AVX2 void draw_avx2(Half* to, std::uint64_t seed, std::uint64_t stream, std::uint64_t draw) {
  const std::uint64_t block = draw * kBlocksAtOnce;
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  const __m256i first = _mm256_set_epi64x(3, 2, 1, 0);
  constexpr int kVectors = 2;  // sixteen registers hold no more
  for (std::int64_t at = 0; at < kBlocksAtOnce; at += 4 * kVectors) {
    __m256i a[kVectors], b[kVectors], c[kVectors], d[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      a[v] = _mm256_add_epi64(first, _mm256_set1_epi64x(static_cast<long long>(block) + at + 4 * v));
      b[v] = _mm256_srli_epi64(a[v], 32);
      c[v] = _mm256_set1_epi64x(static_cast<long long>(stream));
      d[v] = _mm256_set1_epi64x(static_cast<long long>(stream >> 32));
    }
    auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const __m256i p0 = _mm256_mul_epu32(m0, a[v]), p1 = _mm256_mul_epu32(m1, c[v]);
        a[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), b[v]), key0);
        b[v] = p1;
        c[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), d[v]), key1);
        d[v] = p0;
      }
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    for (int v = 0; v < kVectors; ++v) {
      const __m256i ab = _mm256_blend_epi32(a[v], _mm256_slli_epi64(b[v], 32), 0xaa);
      const __m256i cd = _mm256_blend_epi32(c[v], _mm256_slli_epi64(d[v], 32), 0xaa);
      const __m256i even = _mm256_unpacklo_epi64(ab, cd), odd = _mm256_unpackhi_epi64(ab, cd);  // blocks 0 and 2, 1 and 3
      auto* const out = reinterpret_cast<__m256i*>(to + (at + 4 * v) * kElementsABlock);
      _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
  }
}

constexpr EachIsa<DrawHalves> kDraws{draw_baseline, draw_avx2, draw_avx512};

#else

constexpr EachIsa<DrawHalves> kDraws{draw_baseline, draw_baseline, draw_baseline};

#endif

}  // namespace

DrawHalves* draw_halves(Isa isa) { return kDraws.of(isa); }

}  // namespace terrace
