#include <terrace/optimizers/dynamic8_loops.h>

#include <stdexcept>

#if defined(__x86_64__)
#include <terrace/optimizers/dynamic8_vbmi.h>
#endif

namespace terrace::dynamic8 {

#if defined(__x86_64__)
namespace {

template <Sign kSign>
TERRACE_AVX512VBMI void decode_blocks(float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    const __m512 scale = _mm512_set1_ps(scales[b]);
#pragma GCC unroll 1
    for (std::int64_t i = b * kBlockElements; i < (b + 1) * kBlockElements; i += kAtOnce) {
      const Four numbers = decode64<kSign, Order::memory>(codes + i, scale);
      for (std::int64_t v = 0; v < 4; ++v) _mm512_storeu_ps(to + i + 16 * v, numbers.v[v]);
    }
  }
}

template <Sign kSign>
TERRACE_AVX512VBMI void encode_blocks(std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    const float* const block = from + b * kBlockElements;
    __m512i greatest = _mm512_setzero_si512();
    for (std::int64_t i = 0; i < kBlockElements; i += kAtOnce) {
      Four numbers;
      for (std::int64_t v = 0; v < 4; ++v) numbers.v[v] = _mm512_loadu_ps(block + i + 16 * v);
      greatest = greatest_of(greatest, numbers);
    }
    encode_block_vbmi<kSign, Order::memory>(codes + b * kBlockElements, scales + b, block, _mm512_reduce_max_epu32(greatest));
  }
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

#else  // no such set: runs() never says that there is one

void decode_avx512vbmi(Sign, float*, const std::uint8_t*, const float*, std::int64_t) {
  throw std::logic_error("AVX-512 on another processor");
}
void encode_avx512vbmi(Sign, std::uint8_t*, float*, const float*, std::int64_t) {
  throw std::logic_error("AVX-512 on another processor");
}

#endif

}  // namespace terrace::dynamic8
