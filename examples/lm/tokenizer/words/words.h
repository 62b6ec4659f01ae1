// The known patterns, hand-written. next() tries the alternatives in order, as a backtracking regular expression does; some()
// finds most words 64 bytes at a time (word_starts.h).
//
// In a header, because cutting words is the hot loop of encoding. Threads: any. Errors: none.
#pragma once

#include <bit>
#include <cstddef>
#include <string_view>

#include <terrace/examples/lm/tokenizer/words/ascii_run.h>
#include <terrace/examples/lm/tokenizer/words/pattern.h>
#include <terrace/examples/lm/tokenizer/words/unicode.h>
#include <terrace/examples/lm/tokenizer/words/word_starts.h>

namespace terrace::lm {

inline bool is_letter(CharClass c) { return c >= CharClass::upper && c <= CharClass::letter; }
inline bool is_white(CharClass c) { return c >= CharClass::space; }
inline bool is_mark_or_other(CharClass c) { return c == CharClass::other || c == CharClass::mark; }  // [^\s\p{L}\p{N}]

class KnownWords {
 public:
  KnownWords(const char* end) : end_(end), table_(UnicodeTable::get()) {}

  // The end of the word that begins at `at`, which must be before the end of the text.
  template <Pattern kPattern>
  [[nodiscard]] const char* next(const char* at) const {
    if constexpr (kPattern == Pattern::gpt2) return next_gpt2(at);
    if constexpr (kPattern == Pattern::o200k) return next_o200k(at);
    return next_llama3<kPattern>(at);
  }

  // Calls take(begin, end) for at least one and at most kMostAtOnce words from `at` on. Returns the end of the last one.
  static constexpr std::size_t kMostAtOnce = kBlockBytes;
  template <Pattern kPattern, class Take>
  const char* some(const char* at, const Take& take) const {
    if (end_ - at >= kBlockBytes) {
      const auto contraction_end = [&](int i) {
        const char* const stop = contraction<kPattern != Pattern::gpt2>(at + i);
        return stop == nullptr ? 0U : static_cast<unsigned>(stop - at);
      };
      const auto starts = word_starts<kPattern>(BlockClasses(at, end_, table_), contraction_end);
      if (auto ends = starts & (starts - 1); ends != 0) {
        const char* begin = at;
        for (; ends != 0; ends &= ends - 1) {
          const char* const stop = at + std::countr_zero(ends);
          take(begin, stop);
          begin = stop;
        }
        return begin;
      }
    }
    const char* const stop = next<kPattern>(at);
    take(at, stop);
    return stop;
  }

 private:
  struct Classified {
    CharClass kind;
    std::uint32_t bytes;
  };
  [[nodiscard]] Classified at_end_or(const char* at) const { return at == end_ ? Classified{CharClass::space, 0} : of(at); }
  [[nodiscard]] bool is_ascii_or_end(const char* at) const { return at == end_ || static_cast<unsigned char>(*at) < 0x80; }
  [[nodiscard]] Classified of(const char* at) const {
    const auto byte = static_cast<unsigned char>(*at);
    if (byte < 0x80) return {kAsciiClasses[byte], 1};
    const auto c = character_at(at, end_);
    return {table_.class_of(c.code), c.bytes};
  }

  // The end of a run of characters that `belongs` accepts.
  template <class Belongs>
  [[nodiscard]] const char* run(const char* at, const Belongs& belongs) const {
    while (at < end_) {
      const auto c = of(at);
      if (!belongs(c.kind)) break;
      at += c.bytes;
    }
    return at;
  }
  // The same. `ascii_end` must skip exactly the ASCII characters that belong; it does so sixteen bytes at a time.
  template <class AsciiEnd, class Belongs>
  [[nodiscard]] const char* run(const char* at, const AsciiEnd& ascii_end, const Belongs& belongs) const {
    for (;;) {
      while (!is_ascii_or_end(at)) {
        const auto c = of(at);
        if (!belongs(c.kind)) return at;
        at += c.bytes;
      }
      at = ascii_end(at, end_);
      if (is_ascii_or_end(at)) return at;
    }
  }
  [[nodiscard]] const char* letters(const char* at) const { return run(at, ascii_letters_end, is_letter); }
  [[nodiscard]] const char* numbers(const char* at, int most) const {
    for (; most > 0 && at < end_; --most) {
      const auto c = of(at);
      if (c.kind != CharClass::number) break;
      at += c.bytes;
    }
    return at;
  }
  // [^\s\p{L}\p{N}]+, then newlines (and slashes) if the pattern has them.
  [[nodiscard]] const char* others(const char* at) const { return run(at, is_mark_or_other); }
  [[nodiscard]] const char* newlines(const char* at) const {
    while (at < end_ && (*at == '\n' || *at == '\r')) ++at;
    return at;
  }

  // 's 't 'm 'd 're 've 'll after the apostrophe at `at`; nullptr if no contraction follows.
  template <bool kAnyCase>
  [[nodiscard]] const char* contraction(const char* at) const {
    const auto left = end_ - at;
    if (left < 2) return nullptr;
    const auto folded = [&](int i) {
      return kAnyCase && at[i] >= 'A' && at[i] <= 'Z' ? static_cast<char>(at[i] | 0x20) : at[i];
    };
    const char first = folded(1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if (left < 3) return nullptr;
    const char second = folded(2);
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l')) return at + 3;
    if (kAnyCase && at[1] == '\xc5' && at[2] == '\xbf') return at + 3;  // the long s is a case variant of s
    return nullptr;
  }

  // \s+(?!\S)|\s+ : white space, without its last character if a word follows: that character belongs to the word.
  [[nodiscard]] const char* white_space(const char* at) const {
    const char* last = at;
    const char* stop = at;
    while (stop < end_) {
      const auto c = of(stop);
      if (!is_white(c.kind)) break;
      last = stop;
      stop += c.bytes;
    }
    return stop == end_ || last == at ? stop : last;
  }
  // \s*[\r\n]+|\s+(?!\S)|\s+
  [[nodiscard]] const char* lines(const char* at) const {
    const char* last = at;
    const char* after_newline = nullptr;
    const char* stop = at;
    while (stop < end_) {
      const auto c = of(stop);
      if (!is_white(c.kind)) break;
      last = stop;
      stop += c.bytes;
      if (c.kind == CharClass::newline) after_newline = stop;
    }
    if (after_newline != nullptr) return after_newline;
    return stop == end_ || last == at ? stop : last;
  }

  [[nodiscard]] const char* next_gpt2(const char* at) const {
    if (*at == '\'')
      if (const char* const stop = contraction<false>(at)) return stop;
    auto c = of(at);
    const char* begin = at;
    if (*at == ' ') {
      const char* const stop = letters(at + 1);
      if (stop > at + 1) return stop;
      begin = at + 1;
      c = at_end_or(begin);
    }
    if (is_letter(c.kind)) return letters(begin);
    if (c.kind == CharClass::number) return run(begin, [](CharClass k) { return k == CharClass::number; });
    if (is_mark_or_other(c.kind)) return others(begin);
    return white_space(at);
  }

  template <Pattern kPattern>
  [[nodiscard]] const char* next_llama3(const char* at) const {
    if (*at == '\'')
      if (const char* const stop = contraction<true>(at)) return stop;
    const auto c = of(at);
    if (is_letter(c.kind)) return letters(at);
    if (c.kind == CharClass::number) return numbers(at, kPattern == Pattern::qwen2 ? 1 : 3);
    if (c.kind != CharClass::newline) {
      const char* const begin = at + c.bytes;
      const char* const stop = letters(begin);
      if (stop > begin) return stop;
    }
    if (is_mark_or_other(c.kind)) return newlines(others(at));
    if (*at == ' ' && at + 1 < end_ && is_mark_or_other(of(at + 1).kind)) return newlines(others(at + 1));
    return lines(at);
  }

  static bool starts_words(CharClass c) { return c == CharClass::upper || c == CharClass::letter || c == CharClass::mark; }
  static bool ends_words(CharClass c) { return c == CharClass::lower || c == CharClass::letter || c == CharClass::mark; }

  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ from `at`, or nullptr. Sets `upper_end` to the end of the first
  // run.
  [[nodiscard]] const char* lower_word(const char* at, const char*& upper_end) const {
    const auto [capitals, small] = ascii_capitals_and_small_letters(at, end_);
    if (capitals + small < kRunStep && is_ascii_or_end(at + capitals + small)) {  // most words
      upper_end = at + capitals;
      return small > 0 ? upper_end + small : nullptr;
    }
    const char* last = nullptr;  // the end of the last character of the first run that may also be in the second one
    for (;;) {
      if (is_ascii_or_end(at)) at = ascii_capitals_end(at, end_);
      if (is_ascii_or_end(at)) break;
      const auto c = of(at);
      if (!starts_words(c.kind)) break;
      at += c.bytes;
      if (ends_words(c.kind)) last = at;
    }
    upper_end = at;
    return at < end_ && of(at).kind == CharClass::lower ? run(at, ascii_small_letters_end, ends_words) : last;
  }
  [[nodiscard]] const char* with_contraction(const char* at) const {
    if (at < end_ && *at == '\'')
      if (const char* const stop = contraction<true>(at)) return stop;
    return at;
  }
  [[nodiscard]] const char* next_o200k(const char* at) const {
    const auto c = of(at);
    if (c.kind == CharClass::number) return numbers(at, 3);
    const bool takes_prefix = !is_letter(c.kind) && c.kind != CharClass::newline;
    const char* const begin = at + c.bytes;
    const char *upper_end = nullptr, *plain_upper_end = nullptr;
    if (takes_prefix)
      if (const char* const stop = lower_word(begin, upper_end)) return with_contraction(stop);
    const bool may_start = is_letter(c.kind) || c.kind == CharClass::mark;
    if (may_start)
      if (const char* const stop = lower_word(at, plain_upper_end)) return with_contraction(stop);
    if (takes_prefix && upper_end > begin) return with_contraction(upper_end);
    if (may_start && plain_upper_end > at) return with_contraction(plain_upper_end);
    const auto others_and_ends = [&](const char* from) {
      const char* stop = others(from);
      while (stop < end_ && (*stop == '\n' || *stop == '\r' || *stop == '/')) ++stop;
      return stop;
    };
    if (is_mark_or_other(c.kind)) return others_and_ends(at);
    if (*at == ' ' && at + 1 < end_ && is_mark_or_other(of(at + 1).kind)) return others_and_ends(at + 1);
    return lines(at);
  }

  const char* end_;
  const UnicodeTable& table_;
};

// Calls f.template operator()<pattern>().
template <class F>
auto with_pattern(Pattern pattern, F&& f) {
  switch (pattern) {
    case Pattern::gpt2: return f.template operator()<Pattern::gpt2>();
    case Pattern::llama3: return f.template operator()<Pattern::llama3>();
    case Pattern::qwen2: return f.template operator()<Pattern::qwen2>();
    case Pattern::o200k: break;
  }
  return f.template operator()<Pattern::o200k>();
}

}  // namespace terrace::lm
