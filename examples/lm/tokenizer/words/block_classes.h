// The character classes of 64 bytes of a text as bit sets, one bit for each byte.
//
// Threads: any. Errors: none.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <terrace/examples/lm/tokenizer/words/ascii_run.h>
#include <terrace/examples/lm/tokenizer/words/unicode.h>

namespace terrace::lm {

using ByteSet = std::uint64_t;
inline constexpr std::ptrdiff_t kBlockBytes = 64;

class BlockClasses {
 public:
  // Classifies the bytes from `at` on, where a character must begin; at least 64 bytes of text must be left.
  BlockClasses(const char* at, const char* end, const UnicodeTable& table) {
    ByteSet beyond_ascii = 0;
#pragma GCC unroll 4
    for (std::ptrdiff_t i = 0; i < kBlockBytes; i += kRunStep) {
      const AsciiStep step(at + i);
      const auto put = [i](unsigned bits) { return ByteSet{bits} << i; };
      beyond_ascii |= put(step.beyond_ascii());
      blank |= put(step.equal(' '));
      apostrophe |= put(step.equal('\''));
      slash |= put(step.equal('/'));
      of(CharClass::upper) |= put(step.between('A', 'Z'));
      of(CharClass::lower) |= put(step.between('a', 'z'));
      of(CharClass::number) |= put(step.between('0', '9'));
      of(CharClass::newline) |= put(step.equal('\n') | step.equal('\r'));
      of(CharClass::space) |= put(step.between('\t', '\r'));
    }
    of(CharClass::space) = blank | (of(CharClass::space) & ~of(CharClass::newline));
    while (beyond_ascii != 0) {
      const auto first = std::countr_zero(beyond_ascii);
      const auto c = character_at(at + first, end);
      const ByteSet bytes = ((ByteSet{1} << c.bytes) - 1) << first;
      of(table.class_of(c.code)) |= bytes;
      inside |= bytes & (bytes << 1U);
      beyond_ascii &= ~bytes;
    }
  }

  // For the class `other`, the set only has characters of several bytes.
  [[nodiscard]] ByteSet operator[](CharClass kind) const { return sets_[static_cast<std::size_t>(kind)]; }

  ByteSet blank = 0, apostrophe = 0, slash = 0;  // ' ', '\'' and '/'
  ByteSet inside = 0;                            // bytes of a character after its first one

 private:
  ByteSet& of(CharClass kind) { return sets_[static_cast<std::size_t>(kind)]; }
  std::array<ByteSet, 8> sets_{};
};

}  // namespace terrace::lm
