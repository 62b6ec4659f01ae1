#include <terrace/examples/lm/tokenizer/words/character_tokens.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <string>

#include <terrace/examples/lm/tokenizer/words/unicode.h>

namespace terrace::lm {
namespace {

constexpr unsigned kBefore = 3, kAfter = 4;  // kinds of bytes

// For one token and each kind of byte: the lowest rank of a merge with a token before it that ends with such a byte, or with a
// token after it that begins with one.
struct Lowest {
  std::array<std::uint32_t, kBefore> before;
  std::array<std::uint32_t, kAfter> after;
};

template <std::size_t kKinds>
unsigned kinds_up_to(const std::array<std::uint32_t, kKinds>& lowest, std::uint32_t rank) {
  unsigned kinds = 0;
  for (unsigned kind = 0; kind < kKinds; ++kind) kinds |= lowest[kind] <= rank ? 1U << kind : 0U;
  return kinds;
}

class Reduction {
 public:
  Reduction(const MergeTable& table, const std::vector<Lowest>& lowest) : table_(table), lowest_(lowest) {}

  // Merges the bytes of one character separately. This is correct for the following reasons. Every token that is merged within
  // the character has a lower rank there than in any merge across an end of the character (not_before and not_after list the
  // adjacent bytes for which this is false). Ranks rise from merge to merge, so merges within the character come first. A token
  // that remains only merges with its neighbours at a rank above the one that made it, so it may exist early.
  std::optional<CharacterTokens::Tokens> of(std::span<const TokenId> bytes) {
    std::array<Symbol, 4> symbols;
    auto count = bytes.size();
    for (std::size_t i = 0; i < count; ++i) symbols[i] = {.id = bytes[i], .made_at = std::nullopt};
    unsigned not_after = 0, not_before = 0;
    bool inner_may_merge = false;  // one of two remaining tokens merges across the end first
    for (std::optional<std::uint32_t> last; count > 1;) {
      Merge best;
      std::size_t at = 0;
      for (std::size_t i = 0; i + 1 < count; ++i)
        if (const auto merge = table_.find(symbols[i].id, symbols[i + 1].id); merge.rank < best.rank) {
          best = merge;
          at = i;
        }
      if (best.rank == kNoRank) break;
      if (last && best.rank <= *last) return std::nullopt;
      last = best.rank;
      for (auto i = at; i <= at + 1; ++i) {
        const auto& [before, after] = lowest_[symbols[i].id];
        const auto not_here = kinds_up_to(before, best.rank), not_there = kinds_up_to(after, best.rank);
        if (i == 0) not_after |= not_here;
        if (i + 1 == count) not_before |= not_there;
        if (i == at && i > 0) inner_may_merge |= (not_here & CharacterTokens::before(0x80)) != 0;
        if (i == at + 1 && i + 1 < count) inner_may_merge |= (not_there & CharacterTokens::after(0x80)) != 0;
      }
      symbols[at] = {.id = best.id, .made_at = best.rank};
      std::copy(symbols.begin() + at + 2, symbols.begin() + count, symbols.begin() + at + 1);
      --count;
    }
    if (count == bytes.size() || count > 2 || (count == 2 && inner_may_merge)) return std::nullopt;
    for (std::size_t i = 0; i < count; ++i) {
      const auto& [id, made_at] = symbols[i];
      if (id >= CharacterTokens::kNone) return std::nullopt;
      if (made_at && (kinds_up_to(lowest_[id].before, *made_at) | kinds_up_to(lowest_[id].after, *made_at)) != 0)
        return std::nullopt;
    }
    return CharacterTokens::Tokens{.first = symbols[0].id,
                                   .not_before = not_before,
                                   .second = count == 2 ? symbols[1].id : CharacterTokens::kNone,
                                   .not_after = not_after};
  }

 private:
  struct Symbol {
    TokenId id = 0;
    std::optional<std::uint32_t> made_at;  // the rank of its merge; nothing for a byte
  };
  const MergeTable& table_;
  const std::vector<Lowest>& lowest_;
};

std::vector<Lowest> lowest_ranks(std::span<const CharacterTokens::KnownMerge> merges, std::size_t ids) {
  std::vector<Lowest> lowest(ids);
  for (auto& of : lowest) {
    of.before.fill(kNoRank);
    of.after.fill(kNoRank);
  }
  const auto lower = [](std::uint32_t& of, std::uint32_t rank) { of = std::min(of, rank); };
  for (const auto& merge : merges) {
    lower(lowest[merge.left].after[std::countr_zero(CharacterTokens::after(merge.first_of_right))], merge.rank);
    lower(lowest[merge.right].before[std::countr_zero(CharacterTokens::before(merge.last_of_left))], merge.rank);
  }
  return lowest;
}

}  // namespace

CharacterTokens::CharacterTokens(const MergeTable& table, std::span<const KnownMerge> merges, std::size_t ids,
                                 const std::array<TokenId, 256>& of_byte)
    : CharacterTokens() {
  const auto lowest = lowest_ranks(merges, ids);
  Reduction reduction(table, lowest);
  std::string text;
  std::array<TokenId, 4> bytes;
  for (std::uint32_t code = 0x80; code < 0x110000; ++code) {
    text.clear();
    append_utf8(text, code);
    std::ranges::transform(text, bytes.begin(), [&](char byte) { return of_byte[static_cast<unsigned char>(byte)]; });
    if (text.size() > 2 && table.find(bytes[0], bytes[1]).rank == kNoRank) {
      code |= text.size() == 3 ? 0x3fU : 0xfffU;  // skips to the next character whose first two bytes differ
      continue;
    }
    const auto tokens = reduction.of(std::span(bytes).first(text.size()));
    if (!tokens) continue;
    auto& block = index_[code >> 8U];
    if (block == 0) {
      block = static_cast<std::uint16_t>(blocks_.size() / kBlock);
      blocks_.resize(blocks_.size() + kBlock);
    }
    blocks_[std::size_t{block} * kBlock + (code & 0xffU)] = *tokens;
  }
}

}  // namespace terrace::lm
