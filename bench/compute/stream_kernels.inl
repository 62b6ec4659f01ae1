// Compiled once for each instruction set. Everything is static, because code of one set must never be called from another's.
#include <cstring>

#include <terrace/bench/compute/stream_kernels.h>
#include <terrace/core/device/host_copy.h>

namespace terrace::bench {
namespace {

std::uint64_t sink_of_reads;  // keeps the compiler from removing a read

// XORs words, because a sum of floats would be one long chain of additions with a fixed order.
void read(const StreamArrays& x, std::size_t begin, std::size_t count) {
  constexpr std::size_t kWords = 64;
  std::uint32_t words[kWords] = {};
  const auto* const from = reinterpret_cast<const unsigned char*>(x.a + begin);
  for (std::size_t i = 0; i + kWords <= count; i += kWords) {
    std::uint32_t block[kWords];
    std::memcpy(block, from + i * sizeof(float), sizeof block);
    for (std::size_t w = 0; w < kWords; ++w) words[w] ^= block[w];
  }
  std::uint32_t all = 0;
  for (const auto w : words) all ^= w;
  if (all == 0x12345678U) __atomic_store_n(&sink_of_reads, all, __ATOMIC_RELAXED);
}

void write(const StreamArrays& x, std::size_t begin, std::size_t count) {
  float* const to = x.a + begin;
  for (std::size_t i = 0; i < count; ++i) to[i] = 0.5F;
}

void copy(const StreamArrays& x, std::size_t begin, std::size_t count) {
  std::memcpy(x.a + begin, x.b + begin, count * sizeof(float));
}

void copy_nt(const StreamArrays& x, std::size_t begin, std::size_t count) {
  device::copy_bytes(reinterpret_cast<std::byte*>(x.a + begin), reinterpret_cast<const std::byte*>(x.b + begin),
                     count * sizeof(float));
}

void triad(const StreamArrays& x, std::size_t begin, std::size_t count) {
  float* const a = x.a + begin;
  const float* const b = x.b + begin;
  const float* const c = x.c + begin;
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] + 0.5F * c[i];
}

// No square root and no division: the measured quantity is traffic, not arithmetic. Weights a, moments c and d, gradients b or
// half_in.
template <bool half_gradient, bool half_copy>
void adamw(const StreamArrays& x, std::size_t begin, std::size_t count) {
  float* const p = x.a + begin;
  const float* const g32 = half_gradient ? nullptr : x.b + begin;
  const std::uint16_t* const g16 = half_gradient ? x.half_in + begin : nullptr;
  float* const m = x.c + begin;
  float* const v = x.d + begin;
  std::uint16_t* const out = half_copy ? x.half_out + begin : nullptr;
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    float g;
    if constexpr (half_gradient) {
      const std::uint32_t bits = static_cast<std::uint32_t>(g16[i]) << 16U;
      std::memcpy(&g, &bits, sizeof g);
    } else {
      g = g32[i];
    }
    m[i] = 0.9F * m[i] + 0.1F * g;
    v[i] = 0.99F * v[i] + 0.01F * g * g;
    const float w = p[i] - 1e-3F * m[i] * (1.0F - v[i]);
    p[i] = w;
    if constexpr (half_copy) {
      std::uint32_t bits;
      std::memcpy(&bits, &w, sizeof bits);
      out[i] = static_cast<std::uint16_t>(bits >> 16U);
    }
  }
}

}  // namespace

namespace TERRACE_ISA {

extern const StreamKernel kKernels[9];
const StreamKernel kKernels[9]{
    {"read", 4, 0, read},
    {"write", 0, 4, write},
    {"copy", 4, 4, copy},
    {"copy_nt", 4, 4, copy_nt},
    {"triad", 8, 4, triad},
    {"adamw", 16, 12, adamw<false, false>},
    {"adamw, bf16 copy", 16, 14, adamw<false, true>},
    {"adamw, bf16 gradient", 14, 12, adamw<true, false>},
    {"adamw, bf16 gradient and copy", 14, 14, adamw<true, true>},
};

}  // namespace TERRACE_ISA
}  // namespace terrace::bench
