#include <terrace/examples/lm/tokenizer/words/unicode.h>

#include <algorithm>
#include <iterator>
#include <map>

namespace terrace::lm {
namespace {

constexpr std::uint32_t kClassRuns[] = {
#include "unicode_classes.inc"
};

}  // namespace

const UnicodeTable& UnicodeTable::get() {
  static const UnicodeTable table;
  return table;
}

UnicodeTable::UnicodeTable() {
  std::map<std::string, std::uint16_t> known;
  const std::uint32_t* run = kClassRuns;
  for (std::uint32_t block = 0; block < index_.size(); ++block) {
    std::string entries;
    for (std::uint32_t code = block << 8U; code < (block + 1) << 8U; ++code) {
      while (std::next(run) != std::end(kClassRuns) && *std::next(run) >> 4U <= code) ++run;
      entries += static_cast<char>(*run & 0xfU);
    }
    const auto [found, is_new] = known.emplace(entries, static_cast<std::uint16_t>(known.size()));
    if (is_new) blocks_ += entries;
    index_[block] = found->second;
  }
}

std::uint32_t last_character(std::string_view text) {
  const char* const end = text.data() + text.size();
  for (std::uint32_t bytes = 1; bytes <= std::min<std::size_t>(4, text.size()); ++bytes)
    if (const auto found = character_at(end - bytes, end); found.bytes == bytes && found.code != kNoCodePoint)
      return found.code;
  return kNoCodePoint;
}

void append_utf8(std::string& text, std::uint32_t code) {
  const auto add = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xc0U | code >> 6U);
    add(0x80U | (code & 0x3fU));
  } else if (code < 0x10000) {
    add(0xe0U | code >> 12U);
    add(0x80U | (code >> 6U & 0x3fU));
    add(0x80U | (code & 0x3fU));
  } else {
    add(0xf0U | code >> 18U);
    add(0x80U | (code >> 12U & 0x3fU));
    add(0x80U | (code >> 6U & 0x3fU));
    add(0x80U | (code & 0x3fU));
  }
}

}  // namespace terrace::lm
