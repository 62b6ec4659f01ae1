// Templates that try to use as much time, memory or stack as possible: large and deep values, and the language's operations on
// them, repeatedly. The same seed gives the same templates.
//
// Owner: the caller. Threads: one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

namespace terrace::test {

class HostileTemplates {
 public:
  explicit HostileTemplates(std::uint32_t seed) : random_(seed) {}

  std::string next() {
    std::string out = "{% set ns = namespace(t='', l=[], x=none) %}{% set a = " + great_text() +
                      " %}{% set b = " + great_list() + " %}{% set c = " + great_text() + " %}{% set d = " + great_dict() +
                      " %}";
    out += "{% macro m(x, y=2) %}" + maybe("{{ x }}") + maybe(statement(0)) + maybe("{{ m(x) }}", 8) +
           "{{ caller() if caller }}{% endmacro %}";
    if (one_in(2)) out += deep();
    for (int i = 0; i < 3; ++i) out += statement(2);
    return out;
  }

 private:
  bool one_in(unsigned n) { return random_() % n == 0; }
  template <std::size_t kSize>
  std::string pick(const std::array<const char*, kSize>& of) {
    return of[random_() % kSize];
  }
  std::string maybe(std::string text, unsigned n = 2) { return one_in(n) ? std::move(text) : std::string(); }

  std::string great_text() {
    const auto letters = pick(std::array{"'a'", "'ab'", "' '", "'\\n'", "'é'", "'<'", "'\\x01'", "'.'", "'1'", "'ß'", "'ŉ'",
                                         "'a b '", "'中'", "'\\u2028'", "'\"'", "'a,'", "'Σ'", "'\\U0001f600'"});
    const auto count = pick(std::array{"1", "1000", "99999", "700000", "3000000", "15000000"});
    return letters + " * " + count + maybe(" + 'b'");
  }
  std::string great_list() {
    if (one_in(3))
      return pick(std::array{"range(99999) | list", "range(99999) | map('string') | list", "messages * 99999",
                             "range(0, 9000000000000000000, 90000000000000) | list"});
    const auto items = pick(std::array{"[1]", "['a']", "[[]]", "[none]", "[{'a': 1}]", "['a' * 99, 'b']", "[1.5]", "[range(9)]",
                                       "[absent]", "[[1, [2]]]", "['é' * 999999]", "[(1, 2)]"});
    return items + " * " + pick(std::array{"2", "1000", "99999", "900000", "3000000"});
  }
  std::string great_dict() {
    return pick(std::array{"{'a': 1}", "{'a': {'b': 'c' * 9999999}}", "{1: 2, 1.5: 3, none: 4}", "{('a' * 999999): 1}",
                           "{'a': [1] * 99999}", "dict(a=b, b=[b, a], c=c)", "dict([(1, a), (2, b)])"});
  }

  // Nests ns.x in another value, once or twice per turn, many times.
  std::string deep() {
    const auto turn = pick(std::array{"{% set ns.x = [ns.x] %}", "{% set ns.x = (ns.x, ns.x) %}",
                                      "{% set ns.x = [ns.x] | reverse %}", "{% set ns.x = {'a': ns.x} %}",
                                      "{% set ns.x = [ns.x].count %}", "{% for j in [ns.x] %}{% set ns.x = loop %}{% endfor %}",
                                      "{% for j in [1] %}{% set y = loop.changed(ns.x) %}{% set ns.x = loop %}{% endfor %}",
                                      "{% set g = ns.x %}{% macro k() %}{{ g }}{% endmacro %}{% set ns.x = k %}",
                                      "{% set ns.x = namespace(a=ns.x) %}", "{% set ns.x = {'a': ns.x}.items() %}",
                                      "{% set ns.x = [ns.x] | select %}", "{% set ns.x = ns.x ~ ns.x ~ 'a' %}",
                                      "{% set ns.l = ns.l + [ns.x, loop] %}", "{% set ns.x = [ns.x, ns.x] %}"});
    return "{% for i in range(" + pick(std::array{"30", "190", "99999"}) + ") %}" + turn + "{% endfor %}";
  }

  std::string text(int depth) {
    if (depth == 0) return pick(std::array{"a", "a", "c", "ns.t", "'a'", "'b'", "bos_token"});
    const auto of = [&] { return "(" + text(depth - 1) + ")"; };
    switch (random_() % 10) {
      case 0: return of() + " + " + of();
      case 1: return of() + " * " + number(depth - 1);
      case 2: return of() + " ~ " + any(depth - 1);
      case 3:
      case 4:
        return of() + " | " +
               pick(std::array{"upper", "lower", "title", "capitalize", "trim", "escape", "safe", "reverse", "string", "indent",
                               "indent(99, true)", "forceescape", "default('a', true)"});
      case 5:
        return of() + "." + pick(std::array{"strip", "lstrip", "rstrip", "removeprefix", "removesuffix"}) + "(" + of() + ")";
      case 6:
        return of() + pick(std::array{".strip()", ".upper()", ".title()", ".capitalize()", "[::-1]", "[1:]", "[::2]", "[-1]"});
      case 7: return of() + ".replace(" + pick(std::array{"'', ", "'a', ", "a, "}) + of() + ")";
      case 8: return "(" + list(depth - 1) + ") | join(" + of() + ")";
      default:
        return "(" + any(depth - 1) + ") | " +
               pick(std::array{"tojson", "tojson(indent=4)", "tojson(ensure_ascii=true)", "string", "tojson(sort_keys=true)"});
    }
  }
  std::string list(int depth) {
    if (depth == 0) return pick(std::array{"b", "b", "ns.l", "[a]", "[1]", "messages"});
    const auto of = [&] { return "(" + list(depth - 1) + ")"; };
    switch (random_() % 8) {
      case 0: return of() + " + " + of();
      case 1: return of() + " * " + number(depth - 1);
      case 2:
        return of() + " | " +
               pick(std::array{"sort", "unique | list", "reverse | list", "list", "map('string') | list", "map('list') | list",
                               "select | list", "map('map', 'map', 'upper') | list", "sort(true)", "reject('odd') | list",
                               "map(attribute='role') | list", "sort(attribute='a.b.c')", "selectattr('role') | list",
                               "map('tojson') | list", "map('length') | list"});
      case 3: return "(" + text(depth - 1) + ")." + pick(std::array{"split", "rsplit"}) + "(" + maybe(text(depth - 1)) + ")";
      case 4: return "(" + text(depth - 1) + ").splitlines()";
      case 5: return "(" + text(depth - 1) + ") | list";
      case 6: return of() + pick(std::array{"[::-1]", "[1:]", "[::2]", "[:99999]"});
      default: return "[" + any(depth - 1) + ", " + any(depth - 1) + "]";
    }
  }
  std::string number(int depth) {
    if (depth == 0) return pick(std::array{"n", "1", "2", "1000", "99999", "-1", "9223372036854775807"});
    const auto of = [&] { return "(" + text(depth - 1) + ")"; };
    switch (random_() % 6) {
      case 0: return of() + "." + pick(std::array{"find", "rfind", "count"}) + "(" + of() + ")";
      case 1: return of() + " | " + pick(std::array{"length", "int", "float | int"});
      case 2: return "(" + list(depth - 1) + ") | " + pick(std::array{"length", "sum(start=0)"});
      case 3: return "(" + list(depth - 1) + ").count(" + any(depth - 1) + ")";
      case 4:
        return "(" + number(depth - 1) + ") " + pick(std::array{"+", "-", "*", "//", "%", "**"}) + " (" + number(depth - 1) +
               ")";
      default: return "(" + truth(depth - 1) + ") | int";
    }
  }
  std::string truth(int depth) {
    const auto same = [&](const std::string& x, const std::string& y) {
      return "(" + x + ") " + pick(std::array{"==", "!=", "<", ">="}) + " (" + y + ")";
    };
    switch (random_() % 6) {
      case 0: return same(text(depth), text(depth));
      case 1: return same(list(depth), list(depth));
      case 2: return "(" + text(depth) + ") in (" + text(depth) + ")";
      case 3: return "(" + any(depth) + ") in (" + list(depth) + ")";
      case 4: return "(" + text(depth) + ")." + pick(std::array{"startswith", "endswith"}) + "(" + text(depth) + ")";
      default: return "(" + any(depth) + ") is " + pick(std::array{"defined", "none", "iterable", "eq(a)", "in(b)"});
    }
  }
  std::string any(int depth) {
    switch (random_() % 9) {
      case 0: return pick(std::array{"ns.x", "ns", "m", "loop", "absent", "nothing", "real", "d", "dict(a=b)"});
      case 1:
        return "d" +
               pick(std::array{".items() | list", " | dictsort", " | items | list", ".get(a, b)", "[a]", ".keys() | list"});
      case 2: return "{'a': " + list(depth) + ", 'b': ns.x}";
      case 3: return "(" + text(depth) + ", " + list(depth) + ")";
      case 4: return number(depth);
      case 5: return truth(depth);
      case 6: return list(depth);
      case 7:
        return pick(std::array{"m(a)", "{ns.x: 1}", "{(a, c): b}", "range(99999)[::7]", "loop.changed(ns.x)", "ns.x == ns.x"});
      default: return text(depth);
    }
  }

  std::string statement(int depth) {
    const int of = static_cast<int>(random_() % 3);
    const auto body = [&] { return depth == 0 ? "{{ " + any(of) + " }}" : statement(depth - 1); };
    switch (random_() % 14) {
      case 0: return "{{ " + any(of) + " }}";
      case 1: return "{% set ns.t = " + text(of) + " %}";
      case 2: return "{% set ns.l = ns.l + [" + any(of) + "] %}";
      case 3: return "{% set ns.x = " + any(of) + " %}";
      case 4: return "{% set a = " + text(of) + " %}";
      case 5: return "{% set b = " + list(of) + " %}";
      case 6: return "{% if " + truth(of) + " %}" + body() + "{% else %}" + body() + "{% endif %}";
      case 7: return "{% filter " + pick(std::array{"upper", "trim", "indent", "escape"}) + " %}" + body() + "{% endfilter %}";
      case 8: return "{% set y %}" + body() + "{% endset %}{{ y }}";
      case 9: return "{% call m(" + any(of) + ") %}" + body() + "{% endcall %}";
      default:
        return "{% for i in " + (one_in(2) ? "range(99999)" : list(of)) + maybe(" if " + truth(of), 4) + " %}" + body() +
               maybe(body()) + "{% endfor %}";
    }
  }

  std::mt19937 random_;
};

}  // namespace terrace::test
