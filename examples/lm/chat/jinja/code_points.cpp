#include <terrace/examples/lm/chat/jinja/code_points.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

#include <fmt/format.h>

#include <terrace/examples/lm/tokenizer/unicode.h>

namespace terrace::lm::jinja {
namespace {

constexpr std::int32_t kCaseRuns[] = {
#include "case_runs.inc"
};
constexpr std::uint32_t kSpecialCases[] = {
#include "case_special.inc"
};
constexpr std::uint32_t kPrintableRuns[] = {
#include "printable_runs.inc"
};

enum class Case : std::uint8_t { upper, lower, title };

constexpr char32_t kByte = 0xdc00;  // + a byte that is not UTF-8: surrogates, which UTF-8 does not have
constexpr char32_t kSigma = 0x3a3, kFinalSigma = 0x3c2;

std::u32string mapped(Case to, char32_t code) {
  if (code < 0x80) {
    const bool from_lower = code >= 'a' && code <= 'z', from_upper = code >= 'A' && code <= 'Z';
    if (from_lower && to != Case::lower) return {code - 32};
    if (from_upper && to == Case::lower) return {code + 32};
    return {code};
  }
  const auto which = static_cast<std::uint32_t>(to);
  for (std::size_t i = 0; i < std::size(kSpecialCases); i += 5)
    if (kSpecialCases[i] == which && kSpecialCases[i + 1] == code) {
      std::u32string out;
      for (std::size_t part = 2; part < 5; ++part)
        if (kSpecialCases[i + part] != 0) out += static_cast<char32_t>(kSpecialCases[i + part]);
      return out;
    }
  const auto wanted = static_cast<std::int32_t>(code);
  for (std::size_t i = 0; i < std::size(kCaseRuns); i += 5) {
    const auto* const run = kCaseRuns + i;
    if (run[0] != static_cast<std::int32_t>(to) || wanted < run[1] || wanted > run[2]) continue;
    if (run[3] > 0 && (wanted - run[1]) % run[3] != 0) continue;
    return {static_cast<char32_t>(wanted + run[4])};
  }
  return {code};
}

bool has_case(char32_t code) {
  return mapped(Case::upper, code) != std::u32string{code} || mapped(Case::lower, code) != std::u32string{code};
}

// The sigma at the end of a word has a form of its own.
std::u32string lower_at(const std::u32string& text, std::size_t at) {
  const bool ends_word =
      text[at] == kSigma && at > 0 && has_case(text[at - 1]) && (at + 1 == text.size() || !has_case(text[at + 1]));
  return ends_word ? std::u32string{kFinalSigma} : mapped(Case::lower, text[at]);
}

bool is_in(std::u32string_view set, char32_t code) { return set.find(code) != std::u32string_view::npos; }

bool begins_word(char32_t before) { return is_in(U"-({[<", before) || is_white(before); }

struct Cut {
  std::size_t begin, end;  // bytes of a character or of a run of them
};

// The code point at `at`, and how many bytes it has.
std::pair<char32_t, std::size_t> code_at(std::string_view text, std::size_t at) {
  const auto c = character_at(text.data() + at, text.data() + text.size());
  if (c.code == kNoCodePoint) return {kByte + static_cast<unsigned char>(text[at]), 1};
  return {c.code, c.bytes};
}

// Runs of characters that are no white space.
std::vector<Cut> words_of(std::string_view text) {
  std::vector<Cut> words;
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, bytes] = code_at(text, at);
    if (const bool white = is_white(code); white == in_word) {
      if (white)
        words.back().end = at;
      else
        words.push_back({at, text.size()});
      in_word = !white;
    }
    at += bytes;
  }
  return words;
}

}  // namespace

std::u32string decoded(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, bytes] = code_at(text, at);
    out += code;
    at += bytes;
  }
  return out;
}

void append_code_point(std::string& out, char32_t code) {
  if (code >= kByte && code < kByte + 0x100)
    out += static_cast<char>(code - kByte);
  else
    append_utf8(out, code);
}

std::string encoded(std::u32string_view text) {
  std::string out;
  for (const auto code : text) append_code_point(out, code);
  return out;
}

std::size_t code_points(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) at += code_at(text, at).second;
  return count;
}

bool is_white(char32_t code) {
  if (code < 0x80) return (code >= 0x9 && code <= 0xd) || (code >= 0x1c && code <= 0x20);
  return is_in(U"\u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000", code) || (code >= 0x2000 && code <= 0x200a);
}

bool is_line_end(char32_t code) {
  return (code >= 0xa && code <= 0xd) || (code >= 0x1c && code <= 0x1e) || code == 0x85 || code == 0x2028 || code == 0x2029;
}

bool is_printable(char32_t code) {
  const auto after = std::ranges::upper_bound(kPrintableRuns, static_cast<std::uint32_t>(code));
  return std::distance(std::begin(kPrintableRuns), after) % 2 == 1 && (code < 0xd800 || code > 0xdfff);
}

std::string upper(std::string_view text) {
  std::u32string out;
  for (const auto code : decoded(text)) out += mapped(Case::upper, code);
  return encoded(out);
}

std::string lower(std::string_view text) {
  const auto codes = decoded(text);
  std::u32string out;
  for (std::size_t i = 0; i < codes.size(); ++i) out += lower_at(codes, i);
  return encoded(out);
}

std::string capitalized(std::string_view text) {
  const auto codes = decoded(text);
  std::u32string out;
  for (std::size_t i = 0; i < codes.size(); ++i) out += i == 0 ? mapped(Case::title, codes[i]) : lower_at(codes, i);
  return encoded(out);
}

std::string titled(std::string_view text) {
  const auto codes = decoded(text);
  std::u32string out;
  for (std::size_t i = 0; i < codes.size(); ++i)
    out += i > 0 && has_case(codes[i - 1]) ? lower_at(codes, i) : mapped(Case::title, codes[i]);
  return encoded(out);
}

std::string words_titled(std::string_view text) {
  const auto codes = decoded(text);
  std::u32string out;
  for (std::size_t begin = 0; begin < codes.size();) {
    // A word is what stands between characters that begin words; it is lowered alone, for its last sigma.
    auto end = begin + 1;
    while (end < codes.size() && begins_word(codes[end]) == begins_word(codes[begin])) ++end;
    const auto word = codes.substr(begin + 1, end - begin - 1);
    out += mapped(Case::upper, codes[begin]);
    for (std::size_t i = 0; i < word.size(); ++i) out += lower_at(word, i);
    begin = end;
  }
  return encoded(out);
}

std::string_view stripped(std::string_view text, bool left, bool right, std::optional<std::string_view> of) {
  const auto set = of ? decoded(*of) : std::u32string();
  const auto goes = [&](char32_t code) { return of ? is_in(set, code) : is_white(code); };
  std::size_t begin = 0;
  while (left && begin < text.size()) {
    const auto [code, bytes] = code_at(text, begin);
    if (!goes(code)) break;
    begin += bytes;
  }
  text.remove_prefix(begin);
  if (!right) return text;
  std::size_t end = 0;  // after the last character that stays
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, bytes] = code_at(text, at);
    at += bytes;
    if (!goes(code)) end = at;
  }
  return text.substr(0, end);
}

std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, long most) {
  std::vector<std::string_view> out;
  if (!separator) {
    const auto words = words_of(text);
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (most >= 0 && i == static_cast<std::size_t>(most)) {
        out.push_back(text.substr(words[i].begin));  // with the white space at its end
        break;
      }
      out.push_back(text.substr(words[i].begin, words[i].end - words[i].begin));
    }
    return out;
  }
  for (;;) {
    const auto at = most == 0 ? std::string_view::npos : text.find(*separator);
    out.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return out;
    text.remove_prefix(at + separator->size());
    if (most > 0) --most;
  }
}

std::vector<std::string_view> split_from_end(std::string_view text, std::optional<std::string_view> separator, long most) {
  std::vector<std::string_view> out;
  if (!separator) {
    auto words = words_of(text);
    while (!words.empty()) {
      if (most >= 0 && out.size() == static_cast<std::size_t>(most)) {
        out.push_back(text.substr(0, words.back().end));
        break;
      }
      out.push_back(text.substr(words.back().begin, words.back().end - words.back().begin));
      words.pop_back();
    }
  } else {
    for (;;) {
      const auto at = most == 0 ? std::string_view::npos : text.rfind(*separator);
      const auto begin = at == std::string_view::npos ? 0 : at + separator->size();
      out.push_back(text.substr(begin));
      if (at == std::string_view::npos) break;
      text = text.substr(0, at);
      if (most > 0) --most;
    }
  }
  std::ranges::reverse(out);
  return out;
}

std::vector<std::string_view> lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> out;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    auto [code, bytes] = code_at(text, at);
    const auto end = at;
    at += bytes;
    if (!is_line_end(code)) continue;
    if (code == '\r' && at < text.size() && text[at] == '\n') ++at;
    out.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) out.push_back(text.substr(begin));
  return out;
}

void append_quoted(std::string& out, std::string_view text) {
  const char quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (const auto code : decoded(text)) {
    if (code == static_cast<char32_t>(quote) || code == '\\') {
      out += '\\';
      out += static_cast<char>(code);
    } else if (code == '\n' || code == '\r' || code == '\t') {
      out += code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t";
    } else if (is_printable(code)) {
      append_code_point(out, code);
    } else {
      const auto number = static_cast<std::uint32_t>(code);
      out += number < 0x100     ? fmt::format("\\x{:02x}", number)
             : number < 0x10000 ? fmt::format("\\u{:04x}", number)
                                : fmt::format("\\U{:08x}", number);
    }
  }
  out += quote;
}

}  // namespace terrace::lm::jinja
