#include <terrace/examples/lm/chat/jinja/parser.h>

#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/examples/lm/chat/jinja/expressions.h>

namespace terrace::lm::jinja {
namespace {

class Parser : Expressions {
 public:
  explicit Parser(std::string_view source) : Expressions(source) {}

  Parsed all() {
    Parsed out{.body = body_until({}), .marks_answers = false};
    out.marks_answers = marks_answers_;
    return out;
  }

 private:
  // Parses up to one of the tags in `ends`; its name is then the next token. Without `ends`, parses up to the end of the
  // template.
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
  // Parses the inside of a block, starting before the end of its first tag. Stops at the name of the tag that ends the block.
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
      fail_here(fmt::format("'{}' is no statement that can stand here", base::printable(tag)));
    }
    return out;
  }

  // Parses a body that becomes a function in Jinja, so `break` and `continue` cannot refer to a loop outside it.
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
    if (out.expressions[0]->kind != Expression::Kind::call) fail_here("'call' needs the call of a macro");
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
    auto only = std::move(out.parts.front());  // in two steps, because `only` is a part of `out`
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

  int loops_ = 0;
  bool marks_answers_ = false;
};

}  // namespace

Parsed parse(std::string_view source) { return Parser(source).all(); }

}  // namespace terrace::lm::jinja
