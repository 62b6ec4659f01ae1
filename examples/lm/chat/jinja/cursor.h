// A position in the tokens of a template, with the helpers that all grammar rules use to look at, take and refuse tokens.
//
// Owner: its parser. Threads: as the parser. Errors: SyntaxFault, with the line.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/examples/lm/chat/jinja/lexer.h>
#include <terrace/examples/lm/chat/jinja/tree.h>

namespace terrace::lm::jinja {

using Words = std::initializer_list<std::string_view>;

inline bool is_one_of(std::string_view word, Words words) { return std::ranges::find(words, word) != words.end(); }

class Cursor {
 protected:
  explicit Cursor(std::string_view source) : tokens_(tokens_of(source)) {}

  // Counts the nesting of brackets and blocks.
  class Deeper {
   public:
    explicit Deeper(Cursor& cursor) : cursor_(cursor) {
      if (++cursor_.nesting_ > kMostNesting) cursor_.fail_here("expressions or statements are nested too deeply");
    }
    ~Deeper() { --cursor_.nesting_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Cursor& cursor_;
  };

  [[nodiscard]] const Token& now() const { return tokens_[at_]; }
  [[nodiscard]] const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() {
    const auto& token = now();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool skip_name(std::string_view name) {
    if (!now().is_name(name)) return false;
    take();
    return true;
  }
  bool skip_mark(std::string_view mark) {
    if (!now().is_mark(mark)) return false;
    take();
    return true;
  }

  [[noreturn]] void fail_here(std::string what) const {
    throw SyntaxFault{{std::move(what), "correct the template"}, now().line};
  }
  [[noreturn]] void unsupported_here(const std::string& what) const {
    try {
      unsupported(what);
    } catch (Fault& fault) {
      throw SyntaxFault{std::move(fault), now().line};
    }
  }
  [[nodiscard]] std::string here() const {
    switch (now().kind) {
      case Token::Kind::data: return "text";
      case Token::Kind::block_begin: return "'{%'";
      case Token::Kind::block_end: return "'%}'";
      case Token::Kind::output_begin: return "'{{'";
      case Token::Kind::output_end: return "'}}'";
      case Token::Kind::end: return "the end of the template";
      default: return "'" + base::printable(now().text) + "'";
    }
  }
  void expect_mark(std::string_view mark) {
    if (!skip_mark(mark)) fail_here(fmt::format("{} stands where '{}' should", here(), mark));
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) fail_here(fmt::format("{} stands where '{}' should", here(), name));
  }
  std::string name() {
    if (now().kind != Token::Kind::name) fail_here(fmt::format("{} stands where a name should", here()));
    return take().text;
  }
  void end_of_tag() {
    if (now().kind != Token::Kind::block_end) fail_here(fmt::format("{} stands where '%}}' should", here()));
    take();
  }

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace terrace::lm::jinja
