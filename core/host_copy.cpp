#include <terrace/core/host_copy.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace terrace {
namespace {

// Copies `lines` cache lines; `to` is aligned to one.
using LineCopy = void (*)(std::byte* to, const std::byte* from, std::size_t lines);
constexpr std::size_t kLineBytes = 64;

void copy_plain(std::byte* to, const std::byte* from, std::size_t lines) { std::memcpy(to, from, lines * kLineBytes); }

// ThreadSanitizer does not see non-temporal stores, and a copy is where a missing wait would show.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)

__attribute__((target("avx512f"))) void copy_avx512(std::byte* to, const std::byte* from, std::size_t lines) {
  for (std::size_t i = 0; i < lines; ++i) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i * kLineBytes), _mm512_loadu_si512(from + i * kLineBytes));
  }
  _mm_sfence();  // streamed stores are weakly ordered: the event that follows must not overtake them
}

__attribute__((target("avx2"))) void copy_avx2(std::byte* to, const std::byte* from, std::size_t lines) {
  for (std::size_t i = 0; i < lines * 2; ++i) {
    const auto half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i * 32), half);
  }
  _mm_sfence();
}

LineCopy choose() {
  if (__builtin_cpu_supports("avx512f")) return copy_avx512;
  if (__builtin_cpu_supports("avx2")) return copy_avx2;
  return copy_plain;
}

#else

LineCopy choose() { return copy_plain; }

#endif

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes < kNonTemporalBytes) {
    if (bytes) std::memcpy(to, from, bytes);
    return;
  }
  copy_past_cache(to, from, bytes);
}

void copy_past_cache(std::byte* to, const std::byte* from, std::size_t bytes) {
  static const LineCopy copy_lines = choose();
  const std::size_t head = std::min(bytes, (kLineBytes - reinterpret_cast<std::uintptr_t>(to) % kLineBytes) % kLineBytes);
  const std::size_t lines = (bytes - head) / kLineBytes;
  const std::size_t tail = head + lines * kLineBytes;
  if (head) std::memcpy(to, from, head);
  copy_lines(to + head, from + head, lines);
  if (bytes != tail) std::memcpy(to + tail, from + tail, bytes - tail);
}

}  // namespace terrace
