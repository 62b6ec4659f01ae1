#include <terrace/examples/lm/chat/jinja/expressions.h>

#include <charconv>
#include <cstdlib>
#include <set>
#include <string>

namespace terrace::lm::jinja {

Part Expressions::node(Kind kind, int line, std::vector<Part> parts) const {
  auto out = std::make_unique<Expression>();
  out->kind = kind;
  out->line = line;
  out->parts = std::move(parts);
  grown(*out);
  return out;
}
template <class... Parts>
Part Expressions::node_of(Kind kind, int line, Parts... parts) const {
  std::vector<Part> list;
  (list.push_back(std::move(parts)), ...);
  return node(kind, line, std::move(list));
}
// A long chain (a + b + …) makes a tree as deep as many nested brackets, so its height is limited, too.
void Expressions::grown(Expression& out) const {
  for (const auto& part : out.parts)
    if (part) out.height = std::max(out.height, part->height + 1);
  for (const auto& [name, part] : out.named) out.height = std::max(out.height, part->height + 1);
  if (out.height > kMostNesting) fail_here("expressions are nested too deeply");
}
Part Expressions::constant(Value value, int line) const {
  auto out = node(Kind::constant, line);
  out->constant = std::move(value);
  return out;
}

bool Expressions::is_tuple_end(Words ends) const {
  if (now().kind == Token::Kind::output_end || now().kind == Token::Kind::block_end || now().is_mark(")")) return true;
  return now().kind == Token::Kind::name && is_one_of(now().text, ends);
}

Part Expressions::tuple(bool with_choice, Words ends, bool in_brackets) {
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

Part Expressions::expression() {
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

Part Expressions::either() {
  auto out = both();
  while (now().is_name("or")) {
    const auto line = take().line;
    out = node_of(Kind::either, line, std::move(out), both());
  }
  return out;
}
Part Expressions::both() {
  auto out = inverse();
  while (now().is_name("and")) {
    const auto line = take().line;
    out = node_of(Kind::both, line, std::move(out), inverse());
  }
  return out;
}
Part Expressions::inverse() {
  if (!now().is_name("not")) return compare();
  const Deeper deeper(*this);
  const auto line = take().line;
  return node_of(Kind::inverse, line, inverse());
}

Part Expressions::compare() {
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

Part Expressions::sum() {
  auto out = concat();
  while (now().is_mark("+") || now().is_mark("-")) {
    const auto& mark = take();
    out = node_of(mark.text == "+" ? Kind::add : Kind::subtract, mark.line, std::move(out), concat());
  }
  return out;
}
Part Expressions::concat() {
  const auto line = now().line;
  std::vector<Part> parts;
  do {
    parts.push_back(product());
  } while (skip_mark("~"));
  if (parts.size() == 1) return std::move(parts.front());
  return node(Kind::concat, line, std::move(parts));
}
Part Expressions::product() {
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
Part Expressions::power() {
  auto out = unary(true);
  while (now().is_mark("**")) {
    const auto line = take().line;
    out = node_of(Kind::power, line, std::move(out), unary(true));
  }
  return out;
}

Part Expressions::unary(bool with_filters) {
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

Part Expressions::primary() {
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

std::int64_t Expressions::integer() {
  const auto& text = now().text;
  const bool based = text.size() > 2 && text[0] == '0' && (text[1] | 0x20) >= 'a';
  const int base = !based ? 10 : (text[1] | 0x20) == 'x' ? 16 : (text[1] | 0x20) == 'o' ? 8 : 2;
  std::int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data() + (based ? 2 : 0), text.data() + text.size(), out, base);
  if (error != std::errc()) unsupported_here("an integer of more than 64 bits");
  take();
  return out;
}

Part Expressions::list(int line) {
  std::vector<Part> parts;
  while (!now().is_mark("]")) {
    parts.push_back(expression());
    if (!now().is_mark("]")) expect_mark(",");
  }
  take();
  return node(Kind::list, line, std::move(parts));
}
Part Expressions::dict(int line) {
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

Part Expressions::behind(Part out) {
  for (;;) {
    const auto line = now().line;
    if (skip_mark(".")) {
      if (now().kind == Token::Kind::integer) {
        out = node_of(Kind::item, line, std::move(out), constant(Value(integer()), line));
      } else {
        auto attribute = name();
        out = node_of(Kind::attribute, line, std::move(out));
        out->constant = text_value(std::move(attribute));
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

Part Expressions::subscript(Part of, int line) {
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

void Expressions::arguments(Expression& of) {
  expect_mark("(");
  std::set<std::string> names;
  for (bool first = true; !now().is_mark(")"); first = false) {
    if (!first) expect_mark(",");
    if (now().is_mark(")")) break;
    if (now().is_mark("*") || now().is_mark("**")) unsupported_here("an argument with '*'");
    if (now().kind == Token::Kind::name && after().is_mark("=")) {
      auto key = take().text;
      take();
      if (!names.insert(key).second) fail_here(fmt::format("the argument '{}' is given twice", base::printable(key)));
      of.named.emplace_back(std::move(key), expression());
    } else {
      if (!of.named.empty()) fail_here("an argument without a name follows one that has it");
      of.parts.push_back(expression());
    }
  }
  take();
  grown(of);
}
Part Expressions::call(Part of) {
  auto out = node_of(Kind::call, now().line, std::move(of));
  arguments(*out);
  return out;
}

std::string Expressions::dotted_name() {
  auto out = name();
  while (skip_mark(".")) out += "." + name();
  return out;
}

Part Expressions::filters(Part of, bool begun) {
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

Part Expressions::filters_and_tests(Part out) {
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

Part Expressions::test(Part of) {
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

}  // namespace terrace::lm::jinja
