#include <terrace/examples/lm/chat/jinja/lexer.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/examples/lm/chat/jinja/code_points.h>
#include <terrace/examples/lm/tokenizer/words/unicode.h>

namespace terrace::lm::jinja {
namespace {

using TokenKind = Token::Kind;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// Replaces "\r\n" and "\r" by "\n", and removes the last newline.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    out += source[i] == '\r' ? '\n' : source[i];
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

// The value of a string literal, from its text with escapes.
class Literal {
 public:
  Literal(std::string_view inside, int line) : rest_(inside), line_(line) {}

  std::string value() {
    std::string out;
    while (!rest_.empty()) {
      const char c = take();
      if (c != '\\')
        out += c;
      else
        escape(out);
    }
    return out;
  }

 private:
  char take() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }

  void escape(std::string& out) {
    constexpr std::string_view kNames = "\\'\"abfnrtv";
    constexpr std::string_view kCodes = "\\'\"\a\b\f\n\r\t\v";
    const char c = take();  // a literal does not end with a backslash
    if (const auto at = kNames.find(c); at != std::string_view::npos) {
      out += kCodes[at];
    } else if (c == '\n') {  // an escaped newline continues the literal
    } else if (c == 'x' || c == 'u' || c == 'U') {
      add(out, digits(c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, true, 0));
    } else if (c >= '0' && c <= '7') {
      add(out, digits(2, 8, false, static_cast<char32_t>(c - '0')));
    } else if (c == 'N') {
      throw SyntaxFault{{"\\N{…} in a text is not supported", "write the character itself"}, line_};
    } else {
      out += '\\';
      out += c;
    }
  }

  char32_t digits(int most, unsigned base, bool all, char32_t number) {
    int count = 0;
    for (; count < most && !rest_.empty(); ++count) {
      const char c = rest_.front();
      const unsigned digit = is_digit(c)      ? static_cast<unsigned>(c - '0')
                             : begins_name(c) ? static_cast<unsigned>((c | 0x20) - 'a' + 10)
                                              : 99U;
      if (digit >= base) break;
      number = number * base + digit;
      rest_.remove_prefix(1);
    }
    if (all && count < most) throw SyntaxFault{{"a text has an escape that is too short", "correct the template"}, line_};
    return number;
  }
  void add(std::string& out, char32_t code) const {
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
      throw SyntaxFault{{"a text has an escape that is no character", "correct the template"}, line_};
    append_utf8(out, code);
  }

  std::string_view rest_;
  int line_;
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> all() {
    while (at_ < source_.size()) data();
    add(TokenKind::end, {});
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] std::string_view rest() const { return source_.substr(at_); }
  [[nodiscard]] bool stands(std::string_view text) const { return rest().starts_with(text); }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  [[noreturn]] void fail_here(std::string what) const { throw SyntaxFault{{std::move(what), "correct the template"}, line_}; }

  void move(std::size_t bytes) {
    const auto moved = source_.substr(at_, bytes);
    line_ += static_cast<int>(std::ranges::count(moved, '\n'));
    if (!moved.empty()) line_begins_ = moved.back() == '\n';
    at_ += bytes;
  }
  void skip_white() { move(rest().size() - stripped(rest(), true, false).size()); }

  // Adds the text before a tag. `sign` is the third character of the tag.
  void text_before(std::size_t tag, bool is_output, char sign) {
    auto text = source_.substr(at_, tag - at_);
    const auto whole = text.size();
    if (sign == '-') {
      text = stripped(text, false, true);
    } else if (sign != '+' && !is_output) {
      const auto newline = text.rfind('\n');
      const auto begin = newline == std::string_view::npos ? 0 : newline + 1;
      if ((begin > 0 || line_begins_) && begin < text.size() && stripped(text.substr(begin), true, false).empty())
        text = text.substr(0, begin);
    }
    if (!text.empty()) add(TokenKind::data, std::string(text));
    move(whole);
  }

  [[nodiscard]] char sign_at(std::size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : ' ';
  }

  // The position of the next {%, {{ or {#.
  [[nodiscard]] std::size_t next_tag() const {
    for (auto tag = source_.find('{', at_); tag != std::string_view::npos; tag = source_.find('{', tag + 1))
      if (tag + 1 < source_.size() && std::string_view("%{#").find(source_[tag + 1]) != std::string_view::npos) return tag;
    return std::string_view::npos;
  }

  void data() {
    const auto tag = next_tag();
    if (tag == std::string_view::npos) {
      add(TokenKind::data, std::string(rest()));
      move(rest().size());
      return;
    }
    const char kind = source_[tag + 1], sign = sign_at(tag + 2);
    text_before(tag, kind == '{', sign);
    const auto begin_bytes = sign == ' ' ? std::size_t{2} : std::size_t{3};
    if (kind == '#') return comment(begin_bytes);
    if (kind == '%' && raw(begin_bytes)) return;
    add(kind == '%' ? TokenKind::block_begin : TokenKind::output_begin, {});
    move(begin_bytes);
    inside(kind == '%');
  }

  void comment(std::size_t begin_bytes) {
    move(begin_bytes);
    const auto end = rest().find("#}");
    if (end == std::string_view::npos) fail_here("a comment has no end");
    const char sign = end > 0 ? rest()[end - 1] : ' ';
    move(end);
    close(2, sign, true);
  }

  // Moves past the end of a tag, which has `bytes` bytes, and past the white space that is removed after it.
  void close(std::size_t bytes, char sign, bool trims) {
    move(bytes);
    if (sign == '-')
      skip_white();
    else if (trims && sign != '+' && stands("\n"))
      move(1);
  }

  // {% raw %} … {% endraw %}: the text between them is not parsed.
  bool raw(std::size_t begin_bytes) {
    const auto begin = word_tag(at_, begin_bytes, "raw", false);
    if (begin.bytes == 0) return false;
    move(begin.bytes);
    if (begin.sign == '-') skip_white();
    for (auto tag = source_.find("{%", at_);; tag = source_.find("{%", tag + 1)) {
      if (tag == std::string_view::npos) fail_here("{% raw %} has no {% endraw %}");
      const char sign = sign_at(tag + 2);
      const auto end = word_tag(tag, sign == ' ' ? 2 : 3, "endraw", true);
      if (end.bytes == 0) continue;
      text_before(tag, false, sign);
      close(end.bytes, end.sign, true);
      return true;
    }
  }
  struct WordTag {
    std::size_t bytes = 0;  // 0: another tag
    char sign = ' ';        // the one before the tag's end
  };
  [[nodiscard]] WordTag word_tag(std::size_t tag, std::size_t begin_bytes, std::string_view word, bool may_plus) const {
    auto text = stripped(source_.substr(tag + begin_bytes), true, false);
    if (!text.starts_with(word)) return {};
    text = stripped(text.substr(word.size()), true, false);
    WordTag out;
    if (text.starts_with('-') || (may_plus && text.starts_with('+'))) {
      out.sign = text.front();
      text.remove_prefix(1);
    }
    if (!text.starts_with("%}")) return {};
    out.bytes = static_cast<std::size_t>(text.data() + 2 - (source_.data() + tag));
    return out;
  }

  // Reads the tokens up to the end of a tag. Inside brackets, a sequence that looks like the end is an operator.
  void inside(bool is_block) {
    const std::string_view end = is_block ? "%}" : "}}";
    brackets_.clear();
    for (;;) {
      skip_white();
      if (at_ == source_.size()) fail_here(fmt::format("a tag has no end '{}'", end));
      if (brackets_.empty()) {
        const char sign = rest().size() > 2 && rest().substr(1).starts_with(end) ? rest()[0] : ' ';
        if (stands(end) || sign == '-' || (sign == '+' && is_block)) {
          add(is_block ? TokenKind::block_end : TokenKind::output_end, {});
          return close(stands(end) ? 2 : 3, stands(end) ? ' ' : sign, is_block);
        }
      }
      token();
    }
  }

  void token() {
    const char c = rest().front();
    if (is_digit(c)) return number();
    if (begins_name(c)) {
      std::size_t bytes = 1;
      while (bytes < rest().size() && (begins_name(rest()[bytes]) || is_digit(rest()[bytes]))) ++bytes;
      return take(TokenKind::name, bytes);
    }
    if (c == '\'' || c == '"') return literal(c);
    for (const std::string_view mark : {"//", "**", "==", "!=", ">=", "<="})
      if (stands(mark)) return take(TokenKind::mark, 2);
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos)
      fail_here(fmt::format("'{}' cannot stand here", base::printable(rest().substr(0, code_point_at(rest(), 0).bytes))));
    balance(c);
    take(TokenKind::mark, 1);
  }
  void take(TokenKind kind, std::size_t bytes) {
    add(kind, std::string(rest().substr(0, bytes)));
    move(bytes);
  }

  void balance(char c) {
    constexpr std::string_view kOpen = "([{", kClose = ")]}";
    if (const auto open = kOpen.find(c); open != std::string_view::npos) brackets_ += kClose[open];
    if (kClose.find(c) == std::string_view::npos) return;
    if (brackets_.empty()) fail_here(fmt::format("'{}' closes nothing", c));
    if (brackets_.back() != c) fail_here(fmt::format("'{}' stands where '{}' should", c, brackets_.back()));
    brackets_.pop_back();
  }

  // The end of digits, which may have underscores between them.
  [[nodiscard]] std::size_t digits_end(std::size_t at, bool (*belongs)(char)) const {
    const auto text = rest();
    while (at < text.size() && (belongs(text[at]) || (text[at] == '_' && at > 0 && at + 1 < text.size() &&
                                                      belongs(text[at + 1]) && text[at - 1] != '_')))
      ++at;
    return at;
  }

  void number() {
    const auto text = rest();
    const auto add_number = [&](TokenKind kind, std::size_t bytes) {
      std::string digits(text.substr(0, bytes));
      std::erase(digits, '_');
      add(kind, std::move(digits));
      move(bytes);
    };
    const bool after_point = at_ > 0 && source_[at_ - 1] == '.';  // in a.0.1 both numbers are integers
    const auto whole = digits_end(0, is_digit);
    auto end = whole;
    if (!after_point && end + 1 < text.size() && text[end] == '.' && is_digit(text[end + 1]))
      end = digits_end(end + 1, is_digit);
    if (!after_point && end < text.size() && (text[end] | 0x20) == 'e') {
      const auto sign =
          end + 1 < text.size() && (text[end + 1] == '+' || text[end + 1] == '-') ? std::size_t{2} : std::size_t{1};
      if (end + sign < text.size() && is_digit(text[end + sign])) end = digits_end(end + sign, is_digit);
    }
    if (end > whole) return add_number(TokenKind::real, end);
    if (text.size() > 2 && text[0] == '0' &&
        std::string_view("box").find(static_cast<char>(text[1] | 0x20)) != std::string_view::npos)
      if (const auto based = digits_end(
              2, text[1] == 'x' || text[1] == 'X'
                     ? [](char c) { return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }
                 : text[1] == 'o' || text[1] == 'O' ? [](char c) { return c >= '0' && c <= '7'; }
                                                    : [](char c) { return c == '0' || c == '1'; });
          based > 2)
        return add_number(TokenKind::integer, based);
    if (text[0] == '0') return add_number(TokenKind::integer, digits_end(0, [](char c) { return c == '0'; }));
    add_number(TokenKind::integer, whole);
  }

  void literal(char quote) {
    std::size_t end = 1;
    while (end < rest().size() && rest()[end] != quote) end += rest()[end] == '\\' ? 2 : 1;
    if (end >= rest().size()) fail_here("a text has no closing quote");
    add(TokenKind::text, Literal(rest().substr(1, end - 1), line_).value());
    move(end + 1);
  }

  std::string_view source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_begins_ = true;  // the last text read ends with a newline
  std::string brackets_;     // closing brackets that are still expected
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) {
  const auto text = normalized(source);
  return Lexer(text).all();
}

}  // namespace terrace::lm::jinja
