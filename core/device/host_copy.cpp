#include <terrace/core/device/host_copy.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace terrace::device {
namespace {

// Copies `lines` cache lines; `to` is aligned to one.
using LineCopy = void (*)(std::byte* to, const std::byte* from, std::size_t lines);
constexpr std::size_t kLineBytes = 64;

// Copies kPagesAtOnce pages side by side.
using PageCopy = void (*)(std::byte* to, const std::byte* from);
constexpr std::size_t kPagesAtOnce = 8, kPage = 4096;

void pages_plain(std::byte* to, const std::byte* from) { std::memcpy(to, from, kPagesAtOnce * kPage); }

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

__attribute__((target("avx512f"))) void pages_avx512(std::byte* to, const std::byte* from) {
  for (std::size_t i = 0; i < kPage; i += kLineBytes) {
    __m512i line[kPagesAtOnce];
    for (std::size_t p = 0; p < kPagesAtOnce; ++p) line[p] = _mm512_loadu_si512(from + p * kPage + i);
    for (std::size_t p = 0; p < kPagesAtOnce; ++p) _mm512_storeu_si512(to + p * kPage + i, line[p]);
  }
}

PageCopy choose_pages() { return __builtin_cpu_supports("avx512f") ? pages_avx512 : pages_plain; }

LineCopy choose_copy() {
  if (__builtin_cpu_supports("avx512f")) return copy_avx512;
  if (__builtin_cpu_supports("avx2")) return copy_avx2;
  return copy_plain;
}

#else

PageCopy choose_pages() { return pages_plain; }
LineCopy choose_copy() { return copy_plain; }

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
  static const LineCopy copy_lines = choose_copy();
  const std::size_t head = std::min(bytes, (kLineBytes - reinterpret_cast<std::uintptr_t>(to) % kLineBytes) % kLineBytes);
  const std::size_t lines = (bytes - head) / kLineBytes;
  const std::size_t tail = head + lines * kLineBytes;
  if (head) std::memcpy(to, from, head);
  copy_lines(to + head, from + head, lines);
  if (bytes != tail) std::memcpy(to + tail, from + tail, bytes - tail);
}

void copy_from_memory(std::byte* to, const std::byte* from, std::size_t bytes) {
  static const PageCopy copy_pages = choose_pages();
  constexpr auto kBlock = kPagesAtOnce * kPage;
  std::size_t at = 0;
  for (; at + kBlock <= bytes; at += kBlock) copy_pages(to + at, from + at);
  if (at != bytes) std::memcpy(to + at, from + at, bytes - at);
}

}  // namespace terrace::device
