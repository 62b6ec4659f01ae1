#include <terrace/examples/lm/tokenizer/words/normalize.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <vector>

#include <terrace/examples/lm/tokenizer/words/unicode.h>

namespace terrace::lm {
namespace {

constexpr std::uint32_t kDecompositions[] = {
#include "unicode_decompositions.inc"
};
constexpr std::uint32_t kCombiningRuns[] = {
#include "unicode_combining.inc"
};

// Hangul syllables are not in tables but computed (Unicode, section 3.12).
constexpr std::uint32_t kSyllables = 0xac00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11a7;
constexpr std::uint32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28;
constexpr std::uint32_t kSyllableCount = kLeadCount * kVowelCount * kTailCount;

struct Compositions {
  struct Parts {
    std::uint32_t first, second;
  };
  std::unordered_map<std::uint32_t, Parts> parts;
  std::unordered_map<std::uint64_t, std::uint32_t> joined;  // key: first × 2³² + second

  Compositions() {
    for (std::size_t i = 0; i + 2 < std::size(kDecompositions); i += 3) {
      const auto code = kDecompositions[i] / 2, first = kDecompositions[i + 1], second = kDecompositions[i + 2];
      parts[code] = {first, second};
      if (kDecompositions[i] % 2 == 1) joined[std::uint64_t{first} << 32U | second] = code;
    }
  }
  static const Compositions& get() {
    static const Compositions table;
    return table;
  }
};

unsigned combining_class(std::uint32_t code) {
  if (code >= 0x110000) return 0;
  const auto after = std::ranges::upper_bound(kCombiningRuns, code, {}, [](std::uint32_t run) { return run >> 8U; });
  return after == std::begin(kCombiningRuns) ? 0 : *std::prev(after) & 0xffU;
}

// A character of the text, or an invalid byte.
struct Unit {
  std::uint32_t code;
  char byte;
  unsigned order;  // combining class
};

void decompose(std::uint32_t code, std::vector<Unit>& out) {
  if (code - kSyllables < kSyllableCount) {
    const auto index = code - kSyllables;
    out.push_back({kLeads + index / (kVowelCount * kTailCount), 0, 0});
    out.push_back({kVowels + index % (kVowelCount * kTailCount) / kTailCount, 0, 0});
    if (index % kTailCount != 0) out.push_back({kTails + index % kTailCount, 0, 0});
    return;
  }
  const auto& table = Compositions::get().parts;
  const auto found = table.find(code);
  if (found == table.end()) {
    out.push_back({code, 0, combining_class(code)});
    return;
  }
  decompose(found->second.first, out);
  if (found->second.second != 0) decompose(found->second.second, out);
}

// The character that `first` and `second` compose to, or kNoCodePoint.
std::uint32_t join(std::uint32_t first, std::uint32_t second) {
  if (first - kLeads < kLeadCount && second - kVowels < kVowelCount)
    return kSyllables + ((first - kLeads) * kVowelCount + second - kVowels) * kTailCount;
  if (first - kSyllables < kSyllableCount && (first - kSyllables) % kTailCount == 0 && second - kTails - 1 < kTailCount - 1)
    return first + second - kTails;
  const auto& table = Compositions::get().joined;
  const auto found = table.find(std::uint64_t{first} << 32U | second);
  return found == table.end() ? kNoCodePoint : found->second;
}

// Sorts each run of marks by combining class.
void reorder(std::vector<Unit>& units) {
  for (auto begin = units.begin(); begin != units.end();) {
    begin = std::find_if(begin, units.end(), [](const Unit& u) { return u.order != 0; });
    const auto end = std::find_if(begin, units.end(), [](const Unit& u) { return u.order == 0; });
    std::stable_sort(begin, end, [](const Unit& a, const Unit& b) { return a.order < b.order; });
    begin = end;
  }
}

// Composes each mark with the starter before it, unless a character between them blocks it.
void compose(std::vector<Unit>& units) {
  constexpr auto kNone = static_cast<std::size_t>(-1);
  std::size_t starter = kNone, kept = 0;
  unsigned last_order = 0;  // class of the last character kept after the starter
  for (const auto& unit : units) {
    const bool adjacent = starter != kNone && kept == starter + 1;
    if (starter != kNone && unit.code != kNoCodePoint && (adjacent || last_order < unit.order)) {
      if (const auto both = join(units[starter].code, unit.code); both != kNoCodePoint) {
        units[starter].code = both;
        continue;
      }
    }
    if (unit.order == 0) starter = unit.code == kNoCodePoint ? kNone : kept;
    last_order = unit.order;
    units[kept++] = unit;
  }
  units.resize(kept);
}

void append_nfc(std::string_view part, std::string& out) {
  std::vector<Unit> units;
  for (const char* at = part.data(); at < part.data() + part.size();) {
    const auto c = character_at(at, part.data() + part.size());
    if (c.code == kNoCodePoint) {
      units.push_back({kNoCodePoint, *at, 0});
    } else {
      decompose(c.code, units);
    }
    at += c.bytes;
  }
  reorder(units);
  compose(units);
  for (const auto& unit : units) {
    if (unit.code == kNoCodePoint) {
      out += unit.byte;
    } else {
      append_utf8(out, unit.code);
    }
  }
}

}  // namespace

bool is_surely_nfc(std::string_view text) {
  const auto& table = UnicodeTable::get();
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at < end;) {
    if (static_cast<unsigned char>(*at) < 0x80) {
      ++at;
      continue;
    }
    const auto c = character_at(at, end);
    if (table.may_change(c.code)) return false;
    at += c.bytes;
  }
  return true;
}

std::string to_nfc(std::string_view text) {
  const auto& table = UnicodeTable::get();
  std::string out;
  out.reserve(text.size());
  const char* const end = text.data() + text.size();
  const char* stable = text.data();  // start of the last character that NFC does not change; the text before it is in `out`
  const char* at = stable;
  while (at < end) {
    auto c = character_at(at, end);
    if (!table.may_change(c.code)) {
      out.append(stable, at);
      stable = at;
      at += c.bytes;
      continue;
    }
    while (at < end && table.may_change((c = character_at(at, end)).code)) at += c.bytes;
    append_nfc({stable, static_cast<std::size_t>(at - stable)}, out);
    stable = at;
  }
  out.append(stable, end);
  return out;
}

}  // namespace terrace::lm
