// Finds the end of a run of ASCII characters, sixteen bytes at a time.
//
// Threads: any. Errors: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <terrace/examples/lm/tokenizer/words/unicode.h>

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

// Sixteen bytes; results have one bit for each byte.
class AsciiStep {
 public:
#if defined(__SSE2__)
  // ORs `fold` into each byte.
  explicit AsciiStep(const char* at, char fold = 0)
      : bytes_(_mm_or_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)), _mm_set1_epi8(fold))) {}

  [[nodiscard]] unsigned between(char low, char high) const {
    return bits(_mm_and_si128(_mm_cmpgt_epi8(bytes_, _mm_set1_epi8(static_cast<char>(low - 1))),
                              _mm_cmplt_epi8(bytes_, _mm_set1_epi8(static_cast<char>(high + 1)))));
  }
  [[nodiscard]] unsigned equal(char byte) const { return bits(_mm_cmpeq_epi8(bytes_, _mm_set1_epi8(byte))); }
  [[nodiscard]] unsigned beyond_ascii() const { return bits(bytes_); }

 private:
  static unsigned bits(__m128i highest) { return static_cast<unsigned>(_mm_movemask_epi8(highest)); }
  __m128i bytes_;
#else
  explicit AsciiStep(const char* at, char fold = 0) {
    for (unsigned i = 0; i < kRunStep; ++i) bytes_[i] = static_cast<signed char>(at[i] | fold);
  }

  [[nodiscard]] unsigned between(char low, char high) const {
    return bits([=](signed char byte) { return byte >= low && byte <= high; });
  }
  [[nodiscard]] unsigned equal(char byte) const { return between(byte, byte); }
  [[nodiscard]] unsigned beyond_ascii() const {
    return bits([](signed char byte) { return byte < 0; });
  }

 private:
  template <class Is>
  [[nodiscard]] unsigned bits(const Is& is) const {
    unsigned bits = 0;
    for (unsigned i = 0; i < kRunStep; ++i) bits |= (is(bytes_[i]) ? 1U : 0U) << i;
    return bits;
  }
  std::array<signed char, kRunStep> bytes_;
#endif
};

// The first byte from `at` on that, after ORing with `fold`, is not between `low` and `high`.
inline const char* run_between(const char* at, const char* end, char fold, char low, char high) {
  while (end - at >= kRunStep) {
    const unsigned outside = ~AsciiStep(at, fold).between(low, high);
    const auto run = __builtin_ctz(outside);  // at most 16, because the bits above are set
    at += run;
    if (run < kRunStep) return at;
  }
  while (at < end && static_cast<signed char>(*at | fold) >= low && static_cast<signed char>(*at | fold) <= high) ++at;
  return at;
}
inline const char* ascii_capitals_end(const char* at, const char* end) { return run_between(at, end, 0, 'A', 'Z'); }
inline const char* ascii_small_letters_end(const char* at, const char* end) { return run_between(at, end, 0, 'a', 'z'); }
inline const char* ascii_letters_end(const char* at, const char* end) { return run_between(at, end, 0x20, 'a', 'z'); }

// The number of capitals at the beginning of the next sixteen bytes, and of small letters after them. If fewer bytes are left,
// {16, 0}.
struct AsciiWord {
  std::ptrdiff_t capitals, small;
};
inline AsciiWord ascii_capitals_and_small_letters(const char* at, const char* end) {
  if (end - at < kRunStep) return {kRunStep, 0};
  const AsciiStep step(at);
  const auto capitals = __builtin_ctz(~step.between('A', 'Z'));
  const auto small = __builtin_ctz(~(step.between('a', 'z') >> static_cast<unsigned>(capitals)));
  return {capitals, small};
}

}  // namespace terrace::lm
