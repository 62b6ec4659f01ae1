#include <terrace/examples/lm/chat/jinja/parser.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>

#include <fmt/format.h>

#include <terrace/core/printable.h>
#include <terrace/examples/lm/chat/jinja/lexer.h>

namespace terrace::lm::jinja {
namespace {

using Kind = Expression::Kind;
using Words = std::initializer_list<std::string_view>;

bool is_one_of(std::string_view word, Words words) { return std::ranges::find(words, word) != words.end(); }

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokens_of(source)) {}

  Parsed all() {
    Parsed out{.body = body_until({}), .marks_answers = false};
    out.marks_answers = marks_answers_;
    return out;
  }

 private:
  // What is in what, by brackets and by blocks.
  class Deeper {
   public:
    explicit Deeper(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMostNesting) parser_.fail_here("expressions or statements are nested too deeply");
    }
    ~Deeper() { --parser_.nesting_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Parser& parser_;
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
      default: return "'" + printable(now().text) + "'";
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

  // --- statements

  // Up to one of the tags in `ends`, whose name is then the next token. The end of the template if there are none.
  Body body_until(Words ends) {
    const Deeper deeper(*this);
    Body body;
    for (;;) {
      const auto line = now().line;
      switch (now().kind) {
        case Token::Kind::data: {
          auto& data = body.emplace_back();
          data.line = line;
          data.text = take().text;
          break;
        }
        case Token::Kind::output_begin: {
          take();
          auto& output = body.emplace_back();
          output.kind = Statement::Kind::output;
          output.line = line;
          output.expressions.push_back(tuple(true, {}, false));
          if (now().kind != Token::Kind::output_end) fail_here(fmt::format("{} stands where '}}}}' should", here()));
          take();
          break;
        }
        case Token::Kind::block_begin:
          take();
          if (now().kind == Token::Kind::name && is_one_of(now().text, ends)) return body;
          body.push_back(statement());
          end_of_tag();
          break;
        default:
          if (ends.size() > 0) fail_here(fmt::format("'{}' is missing at the end of the template", *(ends.end() - 1)));
          return body;
      }
    }
  }
  // The inside of a block, from the end of the tag that begins it; the tag that ends it is taken up to its name.
  Body block(Words ends) {
    skip_mark(":");
    end_of_tag();
    return body_until(ends);
  }
  Body whole_block(std::string_view end) {
    auto body = block({end});
    take();
    return body;
  }

  Statement statement() {
    const Deeper deeper(*this);
    Statement out;
    out.line = now().line;
    const auto tag = name();
    if (tag == "if") {
      condition(out);
    } else if (tag == "for") {
      loop(out);
    } else if (tag == "set") {
      set(out);
    } else if (tag == "macro") {
      macro(out);
    } else if (tag == "call") {
      call_block(out);
    } else if (tag == "filter") {
      out.kind = Statement::Kind::filter;
      out.expressions.push_back(filters({}, true));
      out.bodies.push_back(whole_block("endfilter"));
    } else if (tag == "with") {
      with(out);
    } else if (tag == "generation") {
      out.kind = Statement::Kind::generation;
      marks_answers_ = true;
      out.bodies.push_back(apart("endgeneration"));
    } else if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail_here(fmt::format("'{}' stands in no loop", tag));
      out.kind = tag == "break" ? Statement::Kind::leave : Statement::Kind::go_on;
    } else if (is_one_of(tag, {"block", "extends", "include", "import", "from", "autoescape", "print"})) {
      unsupported_here(fmt::format("the statement '{}'", tag));
    } else {
      fail_here(fmt::format("'{}' is no statement that can stand here", printable(tag)));
    }
    return out;
  }

  // A body that a loop around it does not reach: it is a function in Jinja.
  Body apart(std::string_view end) {
    const auto loops = std::exchange(loops_, 0);
    auto body = whole_block(end);
    loops_ = loops;
    return body;
  }

  void condition(Statement& out) {
    out.kind = Statement::Kind::condition;
    for (;;) {
      out.expressions.push_back(tuple(false, {}, false));
      out.bodies.push_back(block({"elif", "else", "endif"}));
      const auto tag = take().text;
      if (tag == "elif") continue;
      if (tag == "else") out.bodies.push_back(whole_block("endif"));
      return;
    }
  }

  void loop(Statement& out) {
    out.kind = Statement::Kind::loop;
    out.targets.push_back(target({"in"}, false));
    expect_name("in");
    out.expressions.push_back(tuple(false, {"recursive"}, false));
    out.expressions.push_back(skip_name("if") ? expression() : Part());
    if (now().is_name("recursive")) unsupported_here("a loop that is 'recursive'");
    ++loops_;
    out.bodies.push_back(block({"endfor", "else"}));
    --loops_;
    if (take().text == "else") out.bodies.push_back(whole_block("endfor"));
  }

  void set(Statement& out) {
    out.targets.push_back(target({}, true));
    if (skip_mark("=")) {
      out.kind = Statement::Kind::set;
      out.expressions.push_back(tuple(true, {}, false));
      return;
    }
    out.kind = Statement::Kind::set_block;
    out.expressions.push_back(filters({}, false));
    out.bodies.push_back(whole_block("endset"));
  }

  void macro(Statement& out) {
    out.kind = Statement::Kind::macro;
    out.text = name();
    parameters(out.parameters);
    const auto outer = std::exchange(caller_is_used_, false);
    in_macros_ += 1;
    out.bodies.push_back(apart("endmacro"));
    in_macros_ -= 1;
    out.uses_caller = caller_is_used_;
    caller_is_used_ = caller_is_used_ || outer;
  }

  void call_block(Statement& out) {
    out.kind = Statement::Kind::call;
    if (now().is_mark("(")) parameters(out.parameters);
    out.expressions.push_back(expression());
    if (out.expressions[0]->kind != Kind::call) fail_here("'call' needs the call of a macro");
    const auto outer = std::exchange(caller_is_used_, false);
    out.bodies.push_back(apart("endcall"));
    out.uses_caller = caller_is_used_;
    caller_is_used_ = caller_is_used_ || outer;
  }

  void parameters(Parameters& out) {
    expect_mark("(");
    while (!now().is_mark(")")) {
      if (!out.names.empty()) expect_mark(",");
      out.names.push_back(assignable(name()));
      if (skip_mark("="))
        out.defaults.push_back(expression());
      else if (!out.defaults.empty())
        fail_here("a parameter without a default follows one that has it");
    }
    take();
  }

  void with(Statement& out) {
    out.kind = Statement::Kind::with;
    while (now().kind != Token::Kind::block_end) {
      if (!out.targets.empty()) expect_mark(",");
      out.targets.push_back(target({}, false));
      expect_mark("=");
      out.expressions.push_back(expression());
    }
    out.bodies.push_back(whole_block("endwith"));
  }

  std::string assignable(std::string name) const {
    if (is_one_of(name, {"true", "false", "none", "True", "False", "None"}))
      fail_here(fmt::format("'{}' cannot be assigned to", name));
    return name;
  }

  Target target(Words ends, bool may_attribute) {
    Target out;
    for (;;) {
      if (out.is_tuple && is_tuple_end(ends)) break;
      out.parts.push_back(one_target(may_attribute));
      if (!skip_mark(",")) break;
      out.is_tuple = true;
    }
    if (out.is_tuple) return out;
    auto only = std::move(out.parts.front());  // not in one step: `only` is part of `out`
    return only;
  }
  Target one_target(bool may_attribute) {
    const Deeper deeper(*this);
    Target out;
    if (skip_mark("(")) {
      if (now().is_mark(")")) fail_here("an empty tuple cannot be assigned to");
      out = target({}, false);
      expect_mark(")");
      return out;
    }
    out.name = assignable(name());
    if (out.name == "loop" && !may_attribute) fail_here("'loop' cannot be assigned to");
    if (may_attribute && skip_mark(".")) out.attribute = name();
    return out;
  }

  // --- expressions

  Part node(Kind kind, int line, std::vector<Part> parts = {}) const {
    auto out = std::make_unique<Expression>();
    out->kind = kind;
    out->line = line;
    out->parts = std::move(parts);
    grown(*out);
    return out;
  }
  template <class... Parts>
  Part node_of(Kind kind, int line, Parts... parts) const {
    std::vector<Part> list;
    (list.push_back(std::move(parts)), ...);
    return node(kind, line, std::move(list));
  }
  // Long chains (a + b + …) are as deep as what has many brackets.
  void grown(Expression& out) const {
    for (const auto& part : out.parts)
      if (part) out.height = std::max(out.height, part->height + 1);
    for (const auto& [name, part] : out.named) out.height = std::max(out.height, part->height + 1);
    if (out.height > kMostNesting) fail_here("expressions are nested too deeply");
  }
  Part constant(Value value, int line) const {
    auto out = node(Kind::constant, line);
    out->constant = std::move(value);
    return out;
  }

  [[nodiscard]] bool is_tuple_end(Words ends) const {
    if (now().kind == Token::Kind::output_end || now().kind == Token::Kind::block_end || now().is_mark(")")) return true;
    return now().kind == Token::Kind::name && is_one_of(now().text, ends);
  }

  // One expression, or several with commas between them, which are a tuple.
  Part tuple(bool with_choice, Words ends, bool in_brackets) {
    const auto line = now().line;
    std::vector<Part> parts;
    bool is_tuple = false;
    while (!is_tuple_end(ends)) {
      parts.push_back(with_choice ? expression() : either());
      if (!skip_mark(",")) break;
      is_tuple = true;
    }
    if (!is_tuple && !parts.empty()) return std::move(parts.front());
    if (!is_tuple && !in_brackets) fail_here(fmt::format("{} stands where an expression should", here()));
    return node(Kind::tuple, line, std::move(parts));
  }

  Part expression() {
    const Deeper deeper(*this);
    const auto line = now().line;
    auto out = either();
    while (skip_name("if")) {
      auto condition = either();
      auto otherwise = skip_name("else") ? expression() : Part();
      out = node_of(Kind::choice, line, std::move(condition), std::move(out), std::move(otherwise));
    }
    return out;
  }

  Part either() {
    auto out = both();
    while (now().is_name("or")) {
      const auto line = take().line;
      out = node_of(Kind::either, line, std::move(out), both());
    }
    return out;
  }
  Part both() {
    auto out = inverse();
    while (now().is_name("and")) {
      const auto line = take().line;
      out = node_of(Kind::both, line, std::move(out), inverse());
    }
    return out;
  }
  Part inverse() {
    if (!now().is_name("not")) return compare();
    const Deeper deeper(*this);
    const auto line = take().line;
    return node_of(Kind::inverse, line, inverse());
  }

  Part compare() {
    auto first = sum();
    std::vector<Compared> compared;
    std::vector<Part> parts;
    const auto line = now().line;
    for (;;) {
      if (skip_mark("==")) {
        compared.push_back(Compared::equal);
      } else if (skip_mark("!=")) {
        compared.push_back(Compared::unequal);
      } else if (skip_mark("<")) {
        compared.push_back(Compared::less);
      } else if (skip_mark("<=")) {
        compared.push_back(Compared::less_equal);
      } else if (skip_mark(">")) {
        compared.push_back(Compared::greater);
      } else if (skip_mark(">=")) {
        compared.push_back(Compared::greater_equal);
      } else if (skip_name("in")) {
        compared.push_back(Compared::in);
      } else if (now().is_name("not") && after().is_name("in")) {
        take();
        take();
        compared.push_back(Compared::not_in);
      } else {
        break;
      }
      if (parts.empty()) parts.push_back(std::move(first));
      parts.push_back(sum());
    }
    if (compared.empty()) return first;
    auto out = node(Kind::compare, line, std::move(parts));
    out->compared = std::move(compared);
    return out;
  }

  Part sum() {
    auto out = concat();
    while (now().is_mark("+") || now().is_mark("-")) {
      const auto& mark = take();
      out = node_of(mark.text == "+" ? Kind::add : Kind::subtract, mark.line, std::move(out), concat());
    }
    return out;
  }
  Part concat() {
    const auto line = now().line;
    std::vector<Part> parts;
    do {
      parts.push_back(product());
    } while (skip_mark("~"));
    if (parts.size() == 1) return std::move(parts.front());
    return node(Kind::concat, line, std::move(parts));
  }
  Part product() {
    auto out = power();
    for (;;) {
      const auto line = now().line;
      const auto kind = now().is_mark("*")    ? Kind::multiply
                        : now().is_mark("/")  ? Kind::divide
                        : now().is_mark("//") ? Kind::divide_whole
                        : now().is_mark("%")  ? Kind::remainder
                                              : Kind::constant;
      if (kind == Kind::constant) return out;
      take();
      out = node_of(kind, line, std::move(out), power());
    }
  }
  Part power() {
    auto out = unary(true);
    while (now().is_mark("**")) {
      const auto line = take().line;
      out = node_of(Kind::power, line, std::move(out), unary(true));
    }
    return out;
  }

  Part unary(bool with_filters) {
    const auto line = now().line;
    Part out;
    if (now().is_mark("-") || now().is_mark("+")) {
      const Deeper deeper(*this);
      const auto kind = take().text == "-" ? Kind::minus : Kind::plus;
      out = node_of(kind, line, unary(false));
    } else {
      out = primary();
    }
    out = behind(std::move(out));
    return with_filters ? filters_and_tests(std::move(out)) : std::move(out);
  }

  Part primary() {
    const auto line = now().line;
    switch (now().kind) {
      case Token::Kind::name: {
        const auto text = take().text;
        if (is_one_of(text, {"true", "True"})) return constant(Value(true), line);
        if (is_one_of(text, {"false", "False"})) return constant(Value(false), line);
        if (is_one_of(text, {"none", "None"})) return constant(Value(None()), line);
        if (text == "caller") caller_is_used_ = true;
        if (in_macros_ > 0 && is_one_of(text, {"varargs", "kwargs"})) unsupported_here(fmt::format("'{}' of a macro", text));
        auto out = node(Kind::name, line);
        out->name = text;
        return out;
      }
      case Token::Kind::text: {
        std::string all;
        while (now().kind == Token::Kind::text) all += take().text;
        return constant(text_value(std::move(all)), line);
      }
      case Token::Kind::integer: return constant(Value(integer()), line);
      case Token::Kind::real: return constant(Value(std::strtod(take().text.c_str(), nullptr)), line);
      case Token::Kind::mark: break;
      default: fail_here(fmt::format("{} stands where an expression should", here()));
    }
    if (skip_mark("(")) {
      auto out = tuple(true, {}, true);
      expect_mark(")");
      return out;
    }
    if (skip_mark("[")) return list(line);
    if (skip_mark("{")) return dict(line);
    fail_here(fmt::format("{} stands where an expression should", here()));
  }

  std::int64_t integer() {
    const auto& text = now().text;
    const bool based = text.size() > 2 && text[0] == '0' && (text[1] | 0x20) >= 'a';
    const int base = !based ? 10 : (text[1] | 0x20) == 'x' ? 16 : (text[1] | 0x20) == 'o' ? 8 : 2;
    std::int64_t out = 0;
    const auto [end, error] = std::from_chars(text.data() + (based ? 2 : 0), text.data() + text.size(), out, base);
    if (error != std::errc()) unsupported_here("an integer of more than 64 bits");
    take();
    return out;
  }

  Part list(int line) {
    std::vector<Part> parts;
    while (!now().is_mark("]")) {
      parts.push_back(expression());
      if (!now().is_mark("]")) expect_mark(",");
    }
    take();
    return node(Kind::list, line, std::move(parts));
  }
  Part dict(int line) {
    std::vector<Part> parts;
    while (!now().is_mark("}")) {
      parts.push_back(expression());
      expect_mark(":");
      parts.push_back(expression());
      if (!now().is_mark("}")) expect_mark(",");
    }
    take();
    return node(Kind::dict, line, std::move(parts));
  }

  // What stands behind a value: attributes, items and calls.
  Part behind(Part out) {
    for (;;) {
      const auto line = now().line;
      if (skip_mark(".")) {
        if (now().kind == Token::Kind::integer) {
          out = node_of(Kind::item, line, std::move(out), constant(Value(integer()), line));
        } else {
          auto attribute = name();
          out = node_of(Kind::attribute, line, std::move(out));
          out->name = std::move(attribute);
        }
      } else if (skip_mark("[")) {
        out = subscript(std::move(out), line);
      } else if (now().is_mark("(")) {
        out = call(std::move(out));
      } else {
        return out;
      }
    }
  }

  Part subscript(Part of, int line) {
    Part first = now().is_mark(":") ? Part() : expression();
    if (now().is_mark(",")) unsupported_here("a subscript of several parts");
    if (!now().is_mark(":")) {
      expect_mark("]");
      return node_of(Kind::item, line, std::move(of), std::move(first));
    }
    take();
    Part stop, step;
    if (!now().is_mark(":") && !now().is_mark("]")) stop = expression();
    if (skip_mark(":") && !now().is_mark("]")) step = expression();
    expect_mark("]");
    return node_of(Kind::slice, line, std::move(of), std::move(first), std::move(stop), std::move(step));
  }

  void arguments(Expression& of) {
    expect_mark("(");
    for (bool first = true; !now().is_mark(")"); first = false) {
      if (!first) expect_mark(",");
      if (now().is_mark(")")) break;
      if (now().is_mark("*") || now().is_mark("**")) unsupported_here("an argument with '*'");
      if (now().kind == Token::Kind::name && after().is_mark("=")) {
        auto key = take().text;
        take();
        if (std::ranges::any_of(of.named, [&](const auto& entry) { return entry.first == key; }))
          fail_here(fmt::format("the argument '{}' is given twice", printable(key)));
        of.named.emplace_back(std::move(key), expression());
      } else {
        if (!of.named.empty()) fail_here("an argument without a name follows one that has it");
        of.parts.push_back(expression());
      }
    }
    take();
    grown(of);
  }
  Part call(Part of) {
    auto out = node_of(Kind::call, now().line, std::move(of));
    arguments(*out);
    return out;
  }

  std::string dotted_name() {
    auto out = name();
    while (skip_mark(".")) out += "." + name();
    return out;
  }

  // |filter|filter…, with `begun` from the name of the first one on.
  Part filters(Part of, bool begun) {
    while (begun || skip_mark("|")) {
      begun = false;
      const auto line = now().line;
      auto out = node_of(Kind::filter, line, std::move(of));
      out->name = dotted_name();
      if (now().is_mark("(")) arguments(*out);
      of = std::move(out);
    }
    return of;
  }

  Part filters_and_tests(Part out) {
    for (;;) {
      if (now().is_mark("|")) {
        out = filters(std::move(out), false);
      } else if (now().is_name("is")) {
        out = test(std::move(out));
      } else if (now().is_mark("(")) {
        out = call(std::move(out));
      } else {
        return out;
      }
    }
  }

  Part test(Part of) {
    const auto line = take().line;
    const bool negated = skip_name("not");
    auto out = node_of(Kind::test, line, std::move(of));
    out->name = dotted_name();
    const auto kind = now().kind;
    if (now().is_mark("(")) {
      arguments(*out);
    } else if ((kind == Token::Kind::name && !is_one_of(now().text, {"else", "or", "and"})) || kind == Token::Kind::text ||
               kind == Token::Kind::integer || kind == Token::Kind::real || now().is_mark("[") || now().is_mark("{")) {
      if (now().is_name("is")) fail_here("tests with 'is' cannot follow one another");
      out->parts.push_back(behind(primary()));
      grown(*out);
    }
    return negated ? node_of(Kind::inverse, line, std::move(out)) : std::move(out);
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0, in_macros_ = 0;
  bool caller_is_used_ = false;  // in the macro that is being read
  bool marks_answers_ = false;
};

}  // namespace

Parsed parse(std::string_view source) { return Parser(source).all(); }

}  // namespace terrace::lm::jinja
