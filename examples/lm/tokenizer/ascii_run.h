// How far a run of ASCII characters goes, sixteen at a time.
//
// Threads: any. Errors: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <terrace/examples/lm/tokenizer/unicode.h>

namespace terrace::lm {

inline constexpr std::array<CharClass, 128> kAsciiClasses = [] {
  std::array<CharClass, 128> classes{};
  for (unsigned c = 0; c < 128; ++c) {
    if (c >= 'a' && c <= 'z') classes[c] = CharClass::lower;
    if (c >= 'A' && c <= 'Z') classes[c] = CharClass::upper;
    if (c >= '0' && c <= '9') classes[c] = CharClass::number;
    if (c == ' ' || c == '\t' || c == '\v' || c == '\f') classes[c] = CharClass::space;
    if (c == '\n' || c == '\r') classes[c] = CharClass::newline;
  }
  return classes;
}();

inline constexpr std::ptrdiff_t kRunStep = 16;

#if defined(__SSE2__)
// Of sixteen bytes, those that stand between `low` and `high` after `fold` is set in them.
inline unsigned bytes_between(const char* at, char fold, char low, char high) {
  const __m128i bytes = _mm_or_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)), _mm_set1_epi8(fold));
  const __m128i inside = _mm_and_si128(_mm_cmpgt_epi8(bytes, _mm_set1_epi8(static_cast<char>(low - 1))),
                                       _mm_cmplt_epi8(bytes, _mm_set1_epi8(static_cast<char>(high + 1))));
  return static_cast<unsigned>(_mm_movemask_epi8(inside));
}
#else
inline unsigned bytes_between(const char* at, char fold, char low, char high) {
  unsigned inside = 0;
  for (unsigned i = 0; i < kRunStep; ++i) {
    const auto byte = static_cast<signed char>(at[i] | fold);
    inside |= (byte >= low && byte <= high ? 1U : 0U) << i;
  }
  return inside;
}
#endif

// The first byte from `at` on that is not between `low` and `high`, with `fold` set.
inline const char* run_between(const char* at, const char* end, char fold, char low, char high) {
  while (end - at >= kRunStep) {
    const unsigned outside = ~bytes_between(at, fold, low, high);
    const auto run = __builtin_ctz(outside);  // at most 16: the bits above are set
    at += run;
    if (run < kRunStep) return at;
  }
  while (at < end && static_cast<signed char>(*at | fold) >= low && static_cast<signed char>(*at | fold) <= high) ++at;
  return at;
}
inline const char* ascii_capitals_end(const char* at, const char* end) { return run_between(at, end, 0, 'A', 'Z'); }
inline const char* ascii_small_letters_end(const char* at, const char* end) { return run_between(at, end, 0, 'a', 'z'); }
inline const char* ascii_letters_end(const char* at, const char* end) { return run_between(at, end, 0x20, 'a', 'z'); }

// Of the next sixteen bytes, how many are capitals and how many behind them are small letters. If fewer are left, as if all
// were capitals.
struct AsciiWord {
  std::ptrdiff_t capitals, small;
};
inline AsciiWord ascii_capitals_and_small_letters(const char* at, const char* end) {
  if (end - at < kRunStep) return {kRunStep, 0};
  const auto capitals = __builtin_ctz(~bytes_between(at, 0, 'A', 'Z'));
  const auto small = __builtin_ctz(~(bytes_between(at, 0, 'a', 'z') >> static_cast<unsigned>(capitals)));
  return {capitals, small};
}

}  // namespace terrace::lm
