#include <terrace/examples/lm/chat/jinja/code_points.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include <terrace/examples/lm/chat/jinja/search.h>
#include <terrace/examples/lm/tokenizer/words/unicode.h>

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

constexpr char32_t kByte = 0xdc00;  // + an invalid UTF-8 byte: surrogates, which do not occur in valid UTF-8
constexpr char32_t kSigma = 0x3a3, kFinalSigma = 0x3c2;

// The first row of `table`, ordered by (case, code), that is not before (of, code); null if that case has none. `column`: where
// the code is.
template <class Number, std::size_t kNumbers>
const Number* row_of(const Number (&table)[kNumbers], Case of, char32_t code, std::size_t column) {
  const std::pair wanted(static_cast<std::uint32_t>(of), static_cast<std::uint32_t>(code));
  std::size_t first = 0, end = kNumbers / 5;
  while (first < end) {
    const auto row = first + (end - first) / 2;
    const std::pair here(static_cast<std::uint32_t>(table[5 * row]), static_cast<std::uint32_t>(table[5 * row + column]));
    if (here < wanted)
      first = row + 1;
    else
      end = row;
  }
  return 5 * first == kNumbers || static_cast<std::uint32_t>(table[5 * first]) != wanted.first ? nullptr : table + 5 * first;
}

std::u32string mapped(Case to, char32_t code) {
  if (code < 0x80) {
    const bool from_lower = code >= 'a' && code <= 'z', from_upper = code >= 'A' && code <= 'Z';
    if (from_lower && to != Case::lower) return {code - 32};
    if (from_upper && to == Case::lower) return {code + 32};
    return {code};
  }
  if (const auto* const row = row_of(kSpecialCases, to, code, 1); row != nullptr && row[1] == code) {
    std::u32string out;
    for (std::size_t part = 2; part < 5; ++part)
      if (row[part] != 0) out += static_cast<char32_t>(row[part]);
    return out;
  }
  const auto wanted = static_cast<std::int32_t>(code);
  const auto* const run = row_of(kCaseRuns, to, code, 2);
  if (run == nullptr || wanted < run[1] || (run[3] > 0 && (wanted - run[1]) % run[3] != 0)) return {code};
  return {static_cast<char32_t>(wanted + run[4])};
}

bool has_case(char32_t code) {
  return mapped(Case::upper, code) != std::u32string{code} || mapped(Case::lower, code) != std::u32string{code};
}

bool is_in(std::u32string_view set, char32_t code) { return set.find(code) != std::u32string_view::npos; }

bool begins_word(char32_t before) { return is_in(U"-({[<", before) || is_white(before); }

// Calls each(code, previous code or 0, start of the next one), and charges the work of looking up their cases.
template <class Each>
void each_cased(std::string_view text, Work& work, const Each& each) {
  work.take_read(8 * text.size());
  char32_t before = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, bytes] = code_point_at(text, at);
    if (code >= 0x80) work.take(1);
    at += bytes;
    each(code, before, at);
    before = code;
  }
}

void append_all(Draft& out, std::u32string_view codes) {
  for (const auto code : codes) append_code_point(out, code);
}

// A sigma at the end of a word has its own form. At the beginning and end of the text, the neighbour is 0.
std::u32string lower_between(char32_t before, char32_t code, char32_t after) {
  return code == kSigma && has_case(before) && !has_case(after) ? std::u32string{kFinalSigma} : mapped(Case::lower, code);
}
char32_t code_from(std::string_view text, std::size_t at) { return at < text.size() ? code_point_at(text, at).code : 0; }

// Start of the last code point. An invalid UTF-8 byte is a code point of its own, as in code_point_at().
std::size_t begin_of_last(std::string_view text) {
  for (std::size_t bytes = 2; bytes <= std::min<std::size_t>(4, text.size()); ++bytes)
    if (code_point_at(text, text.size() - bytes).bytes == bytes) return text.size() - bytes;
  return text.size() - 1;
}

template <class Goes>
std::string_view without_ends(std::string_view text, bool left, bool right, const Goes& goes) {
  while (left && !text.empty()) {
    const auto [code, bytes] = code_point_at(text, 0);
    if (!goes(code)) break;
    text.remove_prefix(bytes);
  }
  while (right && !text.empty()) {
    const auto last = begin_of_last(text);
    if (!goes(code_point_at(text, last).code)) break;
    text = text.substr(0, last);
  }
  return text;
}

// A list of parts of a text; charges the memory of the list.
class Parts {
 public:
  explicit Parts(Work& work) : work_(work) {}
  void add(std::string_view part) {
    work_.take(1);
    work_.take_bytes(2 * sizeof(part));
    all_.push_back(part);
  }
  [[nodiscard]] std::size_t size() const { return all_.size(); }
  std::vector<std::string_view> take() { return std::move(all_); }
  std::vector<std::string_view> take_reversed() {
    std::ranges::reverse(all_);
    return std::move(all_);
  }

 private:
  Work& work_;
  std::vector<std::string_view> all_;
};

// Position of the next white space (or, if `white` is false, of the next other character); the end of the text if there is
// none.
std::size_t white_from(std::string_view text, std::size_t at, bool white) {
  while (at < text.size()) {
    const auto [code, bytes] = code_point_at(text, at);
    if (is_white(code) == white) break;
    at += bytes;
  }
  return at;
}

}  // namespace

CodePoint code_point_at(std::string_view text, std::size_t at) {
  const auto c = character_at(text.data() + at, text.data() + text.size());
  if (c.code == kNoCodePoint) return {kByte + static_cast<unsigned char>(text[at]), 1};
  return {c.code, c.bytes};
}

void append_code_point(Draft& out, char32_t code) {
  if (code >= kByte && code < kByte + 0x100) return out.add(static_cast<char>(code - kByte));
  std::string bytes;
  append_utf8(bytes, code);
  out.add(bytes);
}

std::size_t code_points(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) at += code_point_at(text, at).bytes;
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

Draft upper(std::string_view text, Work& work) {
  Draft out(work);
  each_cased(text, work, [&](char32_t code, char32_t, std::size_t) { append_all(out, mapped(Case::upper, code)); });
  return out;
}

Draft lower(std::string_view text, Work& work) {
  Draft out(work);
  each_cased(text, work, [&](char32_t code, char32_t before, std::size_t next) {
    append_all(out, lower_between(before, code, code_from(text, next)));
  });
  return out;
}

Draft capitalized(std::string_view text, Work& work) {
  Draft out(work);
  bool first = true;
  each_cased(text, work, [&](char32_t code, char32_t before, std::size_t next) {
    append_all(out,
               std::exchange(first, false) ? mapped(Case::title, code) : lower_between(before, code, code_from(text, next)));
  });
  return out;
}

Draft titled(std::string_view text, Work& work) {
  Draft out(work);
  each_cased(text, work, [&](char32_t code, char32_t before, std::size_t next) {
    append_all(out, has_case(before) ? lower_between(before, code, code_from(text, next)) : mapped(Case::title, code));
  });
  return out;
}

// Like Jinja's filter `title`: cuts the text at the characters of begins_word() and lowers each word separately after its first
// letter. So a sigma at the end of a word gets its final form.
Draft words_titled(std::string_view text, Work& work) {
  Draft out(work);
  bool in_word = false, is_first = true;  // is_first: in a run of code points that all begin words, or all do not
  char32_t before_in_word = 0;
  each_cased(text, work, [&](char32_t code, char32_t, std::size_t next) {
    const bool begins = begins_word(code);
    is_first = is_first || begins == in_word;
    in_word = !begins;
    const auto after = code_from(text, next);
    const bool is_last = next == text.size() || begins_word(after) != begins;
    append_all(out, is_first ? mapped(Case::upper, code) : lower_between(before_in_word, code, is_last ? 0 : after));
    before_in_word = is_first ? 0 : code;
    is_first = false;
  });
  return out;
}

std::string_view stripped(std::string_view text, bool left, bool right) { return without_ends(text, left, right, is_white); }

std::string_view stripped_of(std::string_view text, bool left, bool right, std::string_view of, Work& work) {
  return without_ends(text, left, right, [&](char32_t wanted) {
    std::size_t at = 0;
    bool found = false;
    while (at < of.size() && !found) {
      const auto [code, bytes] = code_point_at(of, at);
      found = code == wanted;
      at += bytes;
    }
    work.take(1 + at / 16);
    return found;
  });
}

std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, long most, Work& work) {
  Parts out(work);
  if (separator) {
    for (;; most -= most > 0 ? 1 : 0) {
      const auto at = most == 0 ? std::string_view::npos : find_first(text, *separator, 0, work);
      out.add(text.substr(0, at));
      if (at == std::string_view::npos) return out.take();
      text.remove_prefix(at + separator->size());
    }
  }
  work.take_read(4 * text.size());
  for (auto begin = white_from(text, 0, false); begin < text.size();) {
    if (most >= 0 && out.size() == static_cast<std::size_t>(most)) {
      out.add(text.substr(begin));  // including the white space at the end
      break;
    }
    const auto end = white_from(text, begin, true);
    out.add(text.substr(begin, end - begin));
    begin = white_from(text, end, false);
  }
  return out.take();
}

std::vector<std::string_view> split_from_end(std::string_view text, std::optional<std::string_view> separator, long most,
                                             Work& work) {
  Parts out(work);
  if (separator) {
    for (;; most -= most > 0 ? 1 : 0) {
      const auto at = most == 0 ? std::string_view::npos : find_last(text, *separator, work);
      const auto begin = at == std::string_view::npos ? 0 : at + separator->size();
      out.add(text.substr(begin));
      if (at == std::string_view::npos) return out.take_reversed();
      text = text.substr(0, at);
    }
  }
  work.take_read(4 * text.size());
  for (text = stripped(text, false, true); !text.empty(); text = stripped(text, false, true)) {
    if (most >= 0 && out.size() == static_cast<std::size_t>(most)) {
      out.add(text);
      break;
    }
    auto begin = text.size();
    while (begin > 0) {
      const auto last = begin_of_last(text.substr(0, begin));
      if (is_white(code_point_at(text, last).code)) break;
      begin = last;
    }
    out.add(text.substr(begin));
    text = text.substr(0, begin);
  }
  return out.take_reversed();
}

std::vector<std::string_view> lines(std::string_view text, bool keep_ends, Work& work) {
  work.take_read(4 * text.size());
  Parts out(work);
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, bytes] = code_point_at(text, at);
    const auto end = at;
    at += bytes;
    if (!is_line_end(code)) continue;
    if (code == '\r' && at < text.size() && text[at] == '\n') ++at;
    out.add(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) out.add(text.substr(begin));
  return out.take();
}

Draft picked(std::string_view text, std::int64_t first, std::int64_t step, std::int64_t count, Work& work) {
  work.take_read(2 * text.size());
  Draft out(work);
  // Backward: collects the characters in text order, then reverses them.
  const bool back = step < 0;
  const auto by = count < 2 ? std::int64_t{1} : back ? -step : step;
  auto wanted = back ? first - (count - 1) * by : first;
  std::int64_t index = 0;
  for (std::size_t at = 0; at < text.size() && count > 0; ++index) {
    const auto bytes = code_point_at(text, at).bytes;
    if (index == wanted) {
      out.add(text.substr(at, bytes));
      wanted += by;
      --count;
    }
    at += bytes;
  }
  if (!back) return out;
  const auto forward = out.take();
  Draft reversed(work);
  for (std::string_view rest = forward; !rest.empty();) {
    const auto last = begin_of_last(rest);
    reversed.add(rest.substr(last));
    rest = rest.substr(0, last);
  }
  return reversed;
}

void append_escape(Draft& out, char letter, std::uint32_t number, int digits) {
  out.add('\\');
  out.add(letter);
  while (digits-- > 0) out.add("0123456789abcdef"[number >> static_cast<unsigned>(4 * digits) & 0xfU]);
}

void append_quoted(Draft& out, std::string_view text) {
  const char quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  out.add(quote);
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, bytes] = code_point_at(text, at);
    if (code == static_cast<char32_t>(quote) || code == '\\') {
      out.add('\\');
      out.add(static_cast<char>(code));
    } else if (code == '\n' || code == '\r' || code == '\t') {
      out.add(code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t");
    } else if (is_printable(code)) {
      out.add(text.substr(at, bytes));
    } else {
      const auto number = static_cast<std::uint32_t>(code);
      if (number < 0x100)
        append_escape(out, 'x', number, 2);
      else if (number < 0x10000)
        append_escape(out, 'u', number, 4);
      else
        append_escape(out, 'U', number, 8);
    }
    at += bytes;
  }
  out.add(quote);
}

}  // namespace terrace::lm::jinja
