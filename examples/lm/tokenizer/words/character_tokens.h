// For characters of several bytes: the tokens into which their bytes merge before any of them can merge with something beside
// the character. Byte-level encoding starts with these tokens instead of the bytes; the resulting ids are the same.
//
// A character is listed if its bytes become one or two tokens and, by the ranks, all merges within it come before any merge
// across its ends. This may be false beside some bytes, so each character has a mask of them.
//
// Owner: the Bpe. Threads: find() from any. Errors: std::bad_alloc from the constructor.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/examples/lm/tokenizer/words/merge_table.h>
#include <terrace/examples/lm/tokenizer/words/token_id.h>

namespace terrace::lm {

class CharacterTokens {
 public:
  static constexpr TokenId kNone = (1U << 28U) - 1;

  // Kinds of bytes before or after a character, one bit each; 0 at the ends of the word.
  static unsigned before(unsigned char byte) { return byte == ' ' ? 1U : byte < 0x80 ? 2U : 4U; }
  static unsigned after(unsigned char byte) { return byte < 0x80 ? 1U : byte < 0xe0 ? 2U : byte < 0xf0 ? 4U : 8U; }

  struct Tokens {
    TokenId first : 28 = kNone;        // kNone: encoding starts with the character's bytes
    std::uint32_t not_before : 4 = 0;  // not valid before these kinds of bytes
    TokenId second : 28 = kNone;       // kNone: the character is one token
    std::uint32_t not_after : 4 = 0;   // not valid after these kinds of bytes
  };

  struct KnownMerge {
    TokenId left, right;
    std::uint32_t rank;
    unsigned char last_of_left, first_of_right;  // bytes
  };

  CharacterTokens() : blocks_(kBlock) {}
  // `ids`: the largest id + 1; `of_byte`: the tokens of single bytes.
  CharacterTokens(const MergeTable& table, std::span<const KnownMerge> merges, std::size_t ids,
                  const std::array<TokenId, 256>& of_byte);

  [[nodiscard]] const Tokens& find(std::uint32_t code) const {
    return blocks_[std::size_t{index_[code >> 8U]} * kBlock + (code & 0xffU)];
  }

 private:
  static constexpr std::size_t kBlock = 256;
  std::array<std::uint16_t, 0x1100> index_{};  // by code point / 256; the first block has no tokens
  std::vector<Tokens> blocks_;
};

}  // namespace terrace::lm
