// Finds the beginnings of words in 64 bytes of a text at once: the rules of a pattern about a character and its neighbours
// become arithmetic on bit sets. Cases that cannot be expressed this way are left to words.h.
//
// In a header, because it is part of the hot loop of encoding. Threads: any. Errors: none.
#pragma once

#include <bit>

#include <terrace/examples/lm/tokenizer/words/block_classes.h>
#include <terrace/examples/lm/tokenizer/words/pattern.h>

namespace terrace::lm {

inline ByteSet firsts_of_runs(ByteSet set) { return set & ~(set << 1U); }

// Returns the first bytes of words; a word must begin at the first byte of the block. Each word but the last ends where the
// next one begins. `contraction(i)` is the end of a contraction with the apostrophe at byte i, or 0.
template <Pattern kPattern, class Contraction>
ByteSet word_starts(const BlockClasses& of, const Contraction& contraction) {
  constexpr bool kIsGpt2 = kPattern == Pattern::gpt2, kSplitsCases = kPattern == Pattern::o200k;
  const ByteSet upper = of[CharClass::upper], lower = of[CharClass::lower], number = of[CharClass::number];
  const ByteSet mark = kSplitsCases ? of[CharClass::mark] : 0, uncased = of[CharClass::letter] | mark;
  const ByteSet letter = upper | lower | uncased, space = of[CharClass::space];
  ByteSet newline = of[CharClass::newline], other = ~(letter | number | space | newline);
  ByteSet doubtful = 0;  // from its lowest byte on, the result may be wrong

  // [^\s\p{L}\p{N}]+[\r\n]* : newlines (and slashes) after other characters belong to the same word.
  if constexpr (!kIsGpt2) {
    const ByteSet ends = newline | (kSplitsCases ? of.slash : 0), first_ends = newline & other << 1U;
    const ByteSet taken = first_ends | (ends & ~(ends + first_ends));
    newline &= ~taken;
    other &= ~taken;
  }

  // \s*[\r\n]+|\s+(?!\S)|\s+ : white space up to the last newline is a word; of white space before a word, the last character
  // is separate.
  const ByteSet white = space | newline, before_words = white & ~(white >> 1U);
  ByteSet starts = 1 | firsts_of_runs(white);
  if constexpr (kIsGpt2) {
    starts |= before_words;
  } else {
    ByteSet indents = space & newline << 1U;
    for (ByteSet ends = newline & ~space & (space + indents); ends != 0; ends &= ends - 1)  // for lines without words
      indents &= ~(std::bit_floor(~space & ((ends & -ends) - 1)) << 1U);
    starts |= indents | (space & before_words);
  }
  doubtful |= before_words & of.inside;  // if that character begins before this byte

  //  ?[^\s\p{L}\p{N}]+
  const ByteSet others = firsts_of_runs(other) & ~(of.blank << 1U);
  starts |= others;

  //  ?\p{L}+ or [^\r\n\p{L}\p{N}]?\p{L}+ : one other character before letters belongs to their word, if it begins a word.
  const ByteSet behind_others = ((others << 1U) + of.inside) & ~of.inside;
  starts |= firsts_of_runs(letter) & ~(kIsGpt2 ? of.blank << 1U : space << 1U | behind_others);
  if constexpr (kSplitsCases) {
    starts |= upper & lower << 1U;
    // Characters without case and marks may be on either side of the end of capitals; marks also occur among other characters.
    doubtful |= (upper & uncased << 1U) | (uncased & upper << 1U) | (mark & other << 1U);
  }

  //  ?\p{N}+ or \p{N} or \p{N}{1,3}
  if constexpr (kIsGpt2) {
    starts |= firsts_of_runs(number) & ~(of.blank << 1U);
  } else if constexpr (kPattern == Pattern::qwen2) {
    starts |= number & ~of.inside;
  } else {
    const ByteSet after_two = number & number << 1U & number << 2U;
    for (ByteSet group = firsts_of_runs(number); group != 0; group = group << 3U & after_two) starts |= group;
    doubtful |= number & of.inside;  // a group has three characters, but these bits are bytes
  }

  // 's|'t|'re|'ve|'m|'ll|'d : separate words, or the ends of words.
  ByteSet apostrophes = of.apostrophe & (kSplitsCases ? letter << 1U : others);
  while (apostrophes != 0) {
    const auto i = std::countr_zero(apostrophes);
    const ByteSet at = ByteSet{1} << i;
    apostrophes &= ~at;
    const unsigned end = contraction(i);
    if (end == 0) continue;
    const ByteSet behind = end < kBlockBytes ? ByteSet{1} << end : 0, within = behind - at;
    starts &= kSplitsCases ? ~within : ~within | at;
    starts |= behind;
    if constexpr (kSplitsCases) apostrophes &= ~behind;
  }

  // If the block ends in white space, the end of that white space is unknown.
  if (const int last = std::countl_one(white); last > 0) starts &= (ByteSet{2} << (kBlockBytes - last)) - 1;
  return doubtful == 0 ? starts : starts & ((doubtful & -doubtful) - 1);
}

}  // namespace terrace::lm
