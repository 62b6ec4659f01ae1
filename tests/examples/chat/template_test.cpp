// The language of chat templates: each construct writes what Python's Jinja writes, and broken templates are refused.
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/chat/chat_template.h>
#include <terrace/examples/lm/chat/conversation.h>
#include <terrace/examples/lm/chat/jinja/evaluator.h>
#include <terrace/examples/lm/chat/jinja/json.h>
#include <terrace/examples/lm/chat/jinja/parser.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

using testing::HasSubstr;
using Cases = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kVariables = R"({
  "t": "Hello, Wörld 中", "n": 7, "real": 2.5, "yes": true, "nothing": null, "list": [3, 1, 2], "words": ["b", "A", "c"],
  "dict": {"b": 1, "a": {"c": [1, 2]}}, "records": [{"name": "x", "age": 3}, {"name": "Y", "age": 1}]})";

ChatTemplate::Written write(const std::string& source, const std::string& messages = "[]", bool for_answer = false,
                            std::optional<std::int64_t> now = {}) {
  const ChatTemplate chat(source, "the.jinja", {{"bos_token", "<s>"}}, now);
  TemplateInput input;
  for (const auto& message : nlohmann::ordered_json::parse(messages)) input.messages.push_back(template_message(message));
  const auto variables = nlohmann::ordered_json::parse(kVariables);
  for (const auto& [key, value] : variables.items()) input.more.emplace_back(key, jinja::from_json(value));
  return chat.write(input, input.messages.size(), for_answer);
}

void expect(const Cases& cases) {
  for (const auto& [source, text] : cases) {
    try {
      EXPECT_EQ(text, write(source).text) << source;
    } catch (const Error& error) {
      ADD_FAILURE() << source << "\n" << error.what();
    }
  }
}
// Each refusal has three parts: the template's name and line, what is wrong, and what to do.
void expect_refused(const Cases& cases) {
  for (const auto& [source, why] : cases) {
    const auto shown = source.substr(0, 200);
    EXPECT_THAT(test::refusal_of([&] { write(source); }),
                testing::AllOf(HasSubstr("the chat template the.jinja, line "), HasSubstr(why), HasSubstr("\n  ")))
        << shown;
  }
}

TEST(Template, WhiteSpaceAroundTagsGoesAsTheLibrarySetsIt) {
  expect({{"a\n", "a"},
          {"a\n\n", "a\n"},
          {"  {% if yes %}\n  b\n  {% endif %}\n c", "  b\n c"},
          {"x {% if yes %} y{% endif %}", "x  y"},
          {"  {%+ if yes %}y{% endif %}", "  y"},
          {"{% if yes +%}\ny{% endif %}", "\ny"},
          {" a {%- if yes -%} \n b {%- endif %}", " ab"},
          {" {{ n }}\n x", " 7\n x"},
          {" a \n{{- n -}} \n b", " a7b"},
          {"a{# c {{ x }} #}\nb", "ab"},
          {"a {#- c -#} b", "ab"},
          {"{% raw %}{{ x }}{% endraw %}\n!", "{{ x }}!"},
          {"a\r\nb\rc", "a\nb\nc"},
          {"{{ '{{' }}{{ '}}' }}{ {", "{{}}{ {"},
          {"{{ {'a': {'b': 1}}}}", "{'a': {'b': 1}}"}});
}

TEST(Template, StatementsHaveTheirScopes) {
  expect(
      {{"{% if n > 9 %}a{% elif n > 5 %}b{% else %}c{% endif %}", "b"},
       {"{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length "
        "}};{% endfor %}",
        "103TrueFalse3;212FalseFalse3;321FalseTrue3;"},
       {"{% for x in list %}[{{ loop.previtem }}{{ x }}{{ loop.nextitem }}]{% endfor %}", "[31][312][12]"},
       {"{% for k, v in dict.items() %}{{ k }}{{ v }}{% endfor %}", "b1a{'c': [1, 2]}"},
       {"{% for x in list if x != 1 %}{{ x }}{{ loop.length }}{% endfor %}", "3222"},
       {"{% for x in [] %}a{% else %}none{% endfor %}", "none"},
       {"{% for x in 'é中' %}<{{ x }}>{% endfor %}", "<é><中>"},
       {"{% for x in range(9) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor "
        "%}",
        "02"},
       {"{% set x = 1 %}{% for i in list %}{% set x = i %}{% endfor %}{{ x }}", "1"},
       {"{% set ns = namespace(x=1) %}{% for i in list %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "7"},
       {"{% set ns = namespace(done=false) %}{% for i in list if not ns.done %}{{ i }}{% set ns.done = true %}{% endfor %}",
        "3"},
       {"{% set a, b = 1, 2 %}{{ a + b }}", "3"},
       {"{% set x | upper %} a {{ n }} {% endset %}[{{ x }}]", "[ A 7 ]"},
       {"{% if yes %}{% set x = 5 %}{% endif %}{{ x }}", "5"},
       {"{% with x = 1, y = n %}{{ x }}{{ y }}{% endwith %}{{ x }}", "17"},
       {"{% filter upper %}a{{ t }}{% endfilter %}", "AHELLO, WÖRLD 中"},
       {"{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m() }}", "121 123 2"},
       {"{% macro m(a) %}({{ a }}){% if a > 0 %}{{ m(a - 1) }}{% endif %}{% endmacro %}{{ m(2) }}", "(2)(1)(0)"},
       {"{% macro m() %}<{{ caller(1) }}{{ caller(2) }}>{% endmacro %}{% call(x) m() %}{{ x }}{{ n }}{% endcall %}", "<1727>"},
       {"{% for i in list %}{{ loop.cycle('o', 'e') }}{{ loop.changed(i > 1) }} {% endfor %}", "oTrue eTrue oTrue "}});
}

TEST(Template, ExpressionsAreThoseOfPython) {
  expect({{"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}",
           "3 -4 2 3.5 1024 3.0 0.5"},
          {"{{ 1 + 2 * 3 - -4 }} {{ 'a' + 'b' * 3 }} {{ [1] + [2] * 2 }} {{ 'x' ~ 1 ~ none }}", "11 abbb [1, 2, 2] x1None"},
          {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }}",
           "True False True True True True"},
          {"{{ 1 in list }} {{ 9 not in list }} {{ 'b' in dict }} {{ 'ell' in t }} {{ 'x' in missing }}",
           "True True True True False"},
          {"{{ 0 or 'x' }} {{ '' and 1 }}| {{ not [] }} {{ n and 2 }} {{ missing or none }}", "x | True 2 None"},
          {"{{ 'a' if yes else 'b' }}{{ 'a' if nothing }}", "a"},
          {"{{ list[0] }}{{ list[-1] }}{{ list[9] }}{{ list[1:] }}{{ list[::-1] }}{{ list[-2:] }}{{ list[5:] }}",
           "32[1, 2][2, 1, 3][1, 2][]"},
          {"{{ t[-1] }}{{ t[7:9] }}{{ t[::-1] }}", "中Wö中 dlröW ,olleH"},
          {"{{ dict.a.c[1] }}{{ dict['b'] }}{{ dict.missing }}{{ dict['a']['c'][0] }}{{ (1, 2).0 }}", "2111"},
          {"{{ [1, 'it\\'s', none, true, 1.0, (1,), {'k': 'é'}] }}", "[1, \"it's\", None, True, 1.0, (1,), {'k': 'é'}]"},
          {"{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1/3 }} {{ 100.0 }} {{ 1e300 * 1e10 }}",
           "1e+16 1000000000000000.0 0.0001 1e-05 0.3333333333333333 100.0 inf"},
          {"{{ 0x1f }} {{ 1_000 }} {{ 0b11 }} {{ 'a' 'b' }} {{ '\\x41\\u00e9\\n' }}", "31 1000 3 ab Aé\n"},
          {"{{ range(3) }} {{ range(5, 0, -2) | list }} {{ range(9)[::2] }} {{ 3 in range(4) }}",
           "range(0, 3) [5, 3, 1] range(0, 9, 2) True"},
          {"{{ dict.items() }}", "dict_items([('b', 1), ('a', {'c': [1, 2]})])"},
          {"{{ missing }}{{ missing is defined }}{{ nothing }}{{ nothing is defined }}", "FalseNoneTrue"},
          {"{{ {'a': 1, 'a': 2, 1: 'x', true: 'y'} }}", "{'a': 2, 1: 'y'}"},
          {"{{ namespace(a=1) }} {{ {'x': namespace} is mapping }}", "<Namespace {'a': 1}> True"}});
}

TEST(Template, Tests) {
  expect({{"{{ t is string }}{{ dict is mapping }}{{ list is iterable }}{{ t is iterable }}{{ list is sequence }}{{ n is "
           "sequence }}",
           "TrueTrueTrueTrueTrueFalse"},
          {"{{ n is number }}{{ yes is number }}{{ yes is integer }}{{ n is integer }}{{ real is float }}{{ yes is boolean }}",
           "TrueTrueFalseTrueTrueTrue"},
          {"{{ nothing is none }}{{ missing is none }}{{ missing is undefined }}{{ yes is true }}{{ 1 is true }}{{ n is not "
           "none }}",
           "TrueFalseTrueTrueFalseTrue"},
          {"{{ n is odd }}{{ n is even }}{{ n is divisibleby 7 }}{{ n is equalto 7 }}{{ n is gt 6 }}{{ n is in [7] }}{{ n is "
           "ne(7) }}",
           "TrueFalseTrueTrueTrueTrueFalse"},
          {"{{ range is callable }}{{ n is callable }}{{ none is sameas none }}{{ 'y' if n is defined and t is defined else "
           "'n' }}",
           "TrueFalseTruey"}});
}

TEST(Template, Filters) {
  expect(
      {{"{{ ' a ' | trim }}{{ 'xax' | trim('x') }}{{ t | length }}{{ t | upper }}{{ t | lower }}",
        "aa14HELLO, WÖRLD 中hello, wörld 中"},
       {"{{ 'hello wORLD-x' | title }} {{ 'hELLO' | capitalize }} {{ 'aaa' | replace('a', 'b', 2) }}",
        "Hello World-X Hello bba"},
       {"{{ list | join(', ') }} {{ list | sort }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ list | "
        "sort(reverse=true) }}",
        "3, 1, 2 [1, 2, 3] ['A', 'b', 'c'] ['A', 'b', 'c'] [3, 2, 1]"},
       {"{{ list | first }}{{ list | last }}{{ [] | first }}{{ list | sum }}{{ list | min }}{{ list | max }}{{ 'ab' | list }}",
        "32613['a', 'b']"},
       {"{{ '42' | int }} {{ '4.7' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ '1.5' | float }} {{ 'x' | float }} {{ 3 | "
        "float }} {{ 2.9 | int }}",
        "42 4 0 5 1.5 0.0 3.0 2"},
       {"{{ missing | default('d') }}{{ '' | d('e') }}{{ '' | d('f', true) }}{{ missing | d }}", "df"},
       {"{{ dict | tojson }}", R"({"b": 1, "a": {"c": [1, 2]}})"},
       {"{{ dict | tojson(indent=2) }}", "{\n  \"b\": 1,\n  \"a\": {\n    \"c\": [\n      1,\n      2\n    ]\n  }\n}"},
       {"{{ ['é<&\"\\n\\u2028', none, true, 1.5, {}, []] | tojson(indent=none) }}",
        "[\"é<&\\\"\\n\xe2\x80\xa8\", null, true, 1.5, {}, []]"},
       {"{{ {'b': 1, 'a': 'é🙂'} | tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}",
        "{\"a\":\"\\u00e9\\ud83d\\ude42\",\"b\":1}"},
       {"{{ records | map(attribute='name') | list }}{{ records | selectattr('age', 'gt', 1) | map(attribute='name') | join }}",
        "['x', 'Y']x"},
       {"{{ records | rejectattr('name', 'equalto', 'x') | list | length }}{{ [0, 1] | select | list }}{{ [1, none] | "
        "reject('none') | list }}",
        "1[1][1]"},
       {"{{ words | map('upper') | join }} {{ (records | selectattr('age') | first).name }} {{ records | sum(attribute='age') "
        "}}",
        "BAC x 4"},
       {"{{ [1, 1.0, 'a', 'A'] | unique | list }} {{ list | reverse | list }} {{ t | reverse }} {{ dict | items | list | "
        "length }}",
        "[1, 'a'] [2, 1, 3] 中 dlröW ,olleH 2"},
       {"{{ dict | dictsort | first }} {{ records | sort(attribute='age') | map(attribute='age') | list }}",
        "('a', {'c': [1, 2]}) [1, 3]"},
       {"{{ 2.5 | round }} {{ 2.675 | round(2) }} {{ 2.1 | round(0, 'ceil') }} {{ 7 | round }} {{ -3 | abs }}",
        "2.0 2.67 3.0 7 3"},
       {"{{ 'a\\n\\nb' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent('>', blank=true) }}",
        "a\n\n    b|  a\n  b|a\n>\n>b"},
       {"{{ '<a>' | e }} {{ ('<a>' | safe) + '<' }} {{ '<b>' | safe }} {{ 5 | string ~ 1 }}", "&lt;a&gt; <a>&lt; <b> 51"}});
}

TEST(Template, Methods) {
  expect({{"{{ ' a '.strip() }}{{ 'xxa'.lstrip('x') }}{{ 'a\\n\\n'.rstrip('\\n') }}{{ "
           "'abc'.removeprefix('a').removesuffix('c') }}",
           "aaab"},
          {"{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a b c'.split(' ', 1) }}{{ 'a b c'.rsplit(' ', 1) }}",
           "['a', 'b', '', 'c']['a', 'b']['a', 'b c']['a b', 'c']"},
          {"{{ '<think>x</think>y'.split('</think>')[-1] }}{{ 'a\\nb\\r\\nc'.splitlines() }}", "y['a', 'b', 'c']"},
          {"{{ t.startswith('Hell') }}{{ t.endswith(('x', '中')) }}{{ t.find('W') }}{{ t.find('q') }}{{ t.count('l') }}{{ "
           "t.replace('l', 'L', 1) }}",
           "TrueTrue7-13HeLlo, Wörld 中"},
          {"{{ 'they\\'re x'.title() }}{{ ', '.join(words) }}{{ 'ß'.upper() }}{{ 'ΑΣ'.lower() }}{{ 'ǆ'.title() }}",
           "They'Re Xb, A, cSSαςǅ"},
          {"{{ dict.get('b') }}{{ dict.get('q') }}{{ dict.get('q', 1) }}{{ dict.keys() | list }}{{ dict.values() | first }}",
           "1None1['b', 'a']1"},
          {"{{ list.index(1) }}{{ list.count(3) }}{{ '\\u00a0\\u3000x\\u2003'.strip() }}", "11x"}});
}

TEST(Template, TokensMessagesAndTheDayAreGiven) {
  constexpr const char* kMessages =
      R"([{"role":"user","content":"hi","name":null},{"role":"assistant","content":"yes","reasoning":"r"}])";
  EXPECT_EQ("<s>user:hi;assistant:yes;FalseTrueTrue",
            write("{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m['content'] }};{% endfor %}{{ add_generation_prompt "
                  "}}{{ tools is none }}{{ documents is none }}",
                  kMessages)
                .text);
  EXPECT_EQ(
      "[{\"role\": \"user\", \"content\": \"hi\"}, {\"thinking\": \"r\", \"role\": \"assistant\", \"content\": \"yes\", "
      "\"reasoning\": "
      "\"r\", \"reasoning_content\": \"r\"}]",
      write("{{ messages | tojson }}", kMessages).text);
  EXPECT_EQ("14 Nov 2023", write("{{ strftime_now('%d %b %Y') }}", "[]", false, 1'699'963'200).text);
  EXPECT_EQ("False", write("{{ strftime_now is defined }}").text);
}

TEST(Template, GenerationBlocksAreMarked) {
  const auto written = write("é{% for x in list %}q{% generation %}a{{ x }}中{% endgeneration %}\n{% endfor %}");
  EXPECT_EQ("éqa3中qa1中qa2中", written.text);
  using Span = ChatTemplate::Span;
  EXPECT_EQ((std::vector<Span>{{3, 8}, {9, 14}, {15, 20}}), written.generated);
}

TEST(Template, WhatIsNoTemplateIsRefusedWithItsLine) {
  expect_refused({{"a\n{{ 1 + }}", "line 2"},
                  {"{% if yes %}", "'endif' is missing"},
                  {"{% endif %}", "'endif'"},
                  {"{{ 'a }}", "no closing quote"},
                  {"{{ 1", "a tag has no end"},
                  {"{# x", "a comment has no end"},
                  {"{% raw %}", "no {% endraw %}"},
                  {"{{ (1] }}", "']' stands where ')'"},
                  {"{{ ) }}", "')' closes nothing"},
                  {"{% set 1 = 2 %}", "a name"},
                  {"{% set true = 2 %}", "cannot be assigned"},
                  {"{% for loop in list %}{% endfor %}", "'loop'"},
                  {"{% break %}", "stands in no loop"},
                  {"{% for x in list %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "stands in no loop"},
                  {"{% macro m(a=1, b) %}{% endmacro %}", "without a default"},
                  {"{{ m(a=1, 2) }}", "without a name"},
                  {"{{ $ }}", "'$' cannot stand here"},
                  {"{{ é }}", "'é' cannot stand here"},
                  {"{{ 'a' is string is string }}", ""},
                  {"{% frobnicate %}", "'frobnicate' is no statement"},
                  {"{{ }}", "an expression"},
                  {"{{ '\\ud800' }}", "no character"}});
}

TEST(Template, WhatTerraceDoesNotHaveIsNamed) {
  expect_refused(
      {{"{% include 'x' %}", "the statement 'include' is not supported\n  docs/guides/chat.md"},
       {"{% extends 'x' %}", "'extends' is not supported"},
       {"{% block x %}{% endblock %}", "'block' is not supported"},
       {"{% import 'x' as y %}", "'import' is not supported"},
       {"{% for x in list recursive %}{% endfor %}", "'recursive' is not supported"},
       {"{{ t | urlize }}", "the filter 'urlize' is not supported"},
       {"{{ t is escaped }}", "the test 'escaped' is not supported"},
       {"{{ t.format(1) }}", "the method 'format' is not supported"},
       {"{{ '%s' % 1 }}", "formatting a text with '%' is not supported"},
       {"{{ range(*list) }}", "an argument with '*' is not supported"},
       {"{{ 99999999999999999999 }}", "more than 64 bits is not supported"},
       {"{{ 2 ** 64 }}", "more than 64 bits is not supported"},
       {"{{ list | map('upper') }}", "which has an address"},
       {"{% macro m() %}{% generation %}{% endgeneration %}{% endmacro %}{{ m() }}", "{% generation %} in a macro"}});
}

TEST(Template, WhatFailsSaysWhereAndWhy) {
  expect_refused({{"\n\n{{ missing.x }}", "line 3: 'missing' is undefined"},
                  {"{{ dict.q.r }}", "'dict object' has no attribute 'q'"},
                  {"{{ list[9].x }}", "list object has no element 9"},
                  {"{{ 1 + 'a' }}", "'+' does not take int object and str object"},
                  {"{{ 1 < 'a' }}", "have no order"},
                  {"{{ 1 // 0 }}", "division by zero"},
                  {"{{ n() }}", "cannot be called"},
                  {"{{ list.append(1) }}", "which templates may not"},
                  {"{% for x in n %}{% endfor %}", "cannot be iterated"},
                  {"{% for a, b in list %}{% endfor %}", "cannot be iterated"},
                  {"{% set a, b = 1, 2, 3 %}", "3 values cannot be assigned to 2 names"},
                  {"{% set dict.x = 1 %}", "'dict' is no namespace"},
                  {"{{ {[]: 1} }}", "cannot be a key"},
                  {"{{ missing | tojson }}", "'tojson' does not take Undefined"},
                  {"{{ 'a'.split('') }}", "is empty"},
                  {"{{ list | select | list | length }}{{ (list | select) | length }}", "has no length: make it a list"},
                  {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "takes at most 1"},
                  {"{{ strftime_now('%d') }}", "the same text each day"},
                  {"{{ raise_exception('roles must take turns') }}",
                   "it refuses the conversation: roles must take turns\n  change the conversation"},
                  {"{{ ''.__class__ }}{{ ''.__class__.__mro__ }}", "has no attribute '__class__'"}});
}

TEST(Template, NothingThatLoopsOrGrowsForEverIsRun) {
  const auto nested = [](const std::string& open, const std::string& inside, const std::string& close, int count) {
    std::string out = "{{ ";
    for (int i = 0; i < count; ++i) out += open;
    out += inside;
    for (int i = 0; i < count; ++i) out += close;
    return out + " }}";
  };
  std::string sum = "{{ 1", filters = "{{ t", blocks, parts = "{{ dict";
  for (int i = 0; i < 20'000; ++i) {
    sum += "+1";
    filters += "|upper";
    if (i < 10'000) blocks += "{% if yes %}";
    parts += ".a";
  }
  constexpr const char* kForEver = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}";
  constexpr const char* kEnds = "{% endfor %}{% endfor %}{% endfor %}";
  expect_refused({
      {nested("(", "1", ")", 20'000), "nested too deeply"},
      {nested("[", "", "]", 20'000), "nested too deeply"},
      {nested("{1:", "1", "}", 20'000), "nested too deeply"},
      {nested("-", "1", "", 20'000), "nested too deeply"},
      {nested("not ", "1", "", 20'000), "nested too deeply"},
      {nested("1 if 1 else ", "1", "", 10'000), "nested too deeply"},
      {sum + " }}", "nested too deeply"},
      {filters + " }}", "nested too deeply"},
      {parts + " }}", "nested too deeply"},
      {blocks, "nested too deeply"},
      {"{% set " + std::string(20'000, '(') + "x" + std::string(20'000, ')') + " = 1 %}", "nested too deeply"},
      {"{{ range(100001) | list }}", "more than 100000 items"},
      {"{{ range(0, 9000000000000000000) }}", "more than 100000 items"},
      {"{{ 'a' * 9000000000000000000 }}", "more than 64 MiB"},
      {"{{ [1] * 9000000000 }}", "more than 5 million steps"},
      {"{{ 'x' | indent(9000000000) }}", "more than 64 MiB"},
      {"{{ dict | tojson(indent=9000000000) }}", "more than 64 MiB"},
      {"{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", "more than 64 MiB"},
      {"{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('', ns.x) %}{% endfor %}",
       "more than"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}", "nests lists and dicts"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
       "more than 5 million steps"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == [ns.x[0], "
       "ns.x[1]] }}",
       "more than 5 million steps"},
      {"{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "part of itself"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deeply"},
      {std::string(kForEver) + kEnds, "more than 5 million steps"},
      {std::string(kForEver) + "{% set x = list | sort | join %}" + kEnds, "more than 5 million steps"},
  });
}

// The reason that ends a template with only this many steps and bytes left; empty if it writes its text.
std::string end_of(const std::string& source, std::uint64_t steps, std::size_t bytes = jinja::kMostBytes) {
  jinja::Runtime runtime;
  runtime.work.take(jinja::kMostSteps - steps);
  runtime.work.take_bytes(jinja::kMostBytes - bytes);
  const auto parsed = jinja::parse(source);
  jinja::Evaluator evaluator(runtime, {});
  try {
    evaluator.write(parsed.body);
    return {};
  } catch (const jinja::Fault& fault) {
    return fault.what;
  }
}

// Steps are charged where time is spent: for what is compared, skipped or inspected, even if little is written.
TEST(Template, WhatIsReadIsCharged) {
  constexpr const char* kSteps = "it takes more than 5 million steps";
  const std::string repeats = "{% set a = 'a' * 40000 %}{% set b = 'a' * 20000 + 'b' %}";
  for (const auto* const found : {"a.find(b)", "b in a", "a.count(b)", "a.split(b)", "a.replace(b, '')", "a | replace(b, '')",
                                  "a.rfind(b)", "a.rsplit(b)"})
    EXPECT_EQ(kSteps, end_of(repeats + "{{ " + found + " }}", 1'000'000)) << found;
  // A read of a text of 64,000 bytes takes a thousand steps; each expression reads it twenty times.
  const std::string texts = "{% set t = 'é' * 32000 %}{% set u = 'é' * 32000 %}{% set s = ' ' * 64000 %}";
  const auto often = [](const std::string& what) { return "{% for i in range(20) %}{% set x = " + what + " %}{% endfor %}"; };
  EXPECT_EQ("", end_of(texts + often("t"), 12'000));
  for (const auto* const read : {"t | length",
                                 "t[0]",
                                 "t[1:2]",
                                 "t.strip('é')",
                                 "t | trim('é')",
                                 "s.strip()",
                                 "s | trim",
                                 "s.lstrip()",
                                 "s.rstrip()",
                                 "t.startswith(t)",
                                 "t.endswith((t, t))",
                                 "t.removeprefix(t)",
                                 "t | reverse",
                                 "'x'.strip(t)",
                                 "t | int",
                                 "t | float",
                                 "t == u",
                                 "t < u",
                                 "t.count('')",
                                 "t.count('é')",
                                 "t.split(none, 0)",
                                 "t.splitlines()",
                                 "t | lower",
                                 "[t, t] | unique",
                                 "{t: 1}.get(u)",
                                 "t.rfind('x')",
                                 "s.split()",
                                 "s | int"})
    EXPECT_EQ(kSteps, end_of(texts + often(read), 12'000)) << read;
  EXPECT_EQ(kSteps, end_of("{% set ns = namespace(x=(1, 2)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}"
                           "{{ {ns.x: 1} }}",
                           1'000'000));
  const std::string name(60'000, 'n');
  EXPECT_EQ(kSteps, end_of("{% set " + name + "1 = 1 %}{% set " + name + "2 = 1 %}" + often(name + "2"), 12'000));
  std::string names, parameters, arguments;
  for (int i = 0; i < 1000; ++i) {
    const auto one = "v" + std::to_string(i);
    names += "{% set " + one + " = 1 %}";
    parameters += (i == 0 ? "" : ", ") + one;
    arguments += (i == 0 ? "" : ", ") + one + "=1";
  }
  EXPECT_EQ("", end_of(names, 80'000));
  EXPECT_EQ(kSteps, end_of(names + "{% for i in range(300) %}{% set x = absent %}{% endfor %}", 80'000));
  EXPECT_EQ(kSteps, end_of("{% macro m(" + parameters + ") %}{% endmacro %}{{ m(" + arguments + ") }}", 300'000));
}

// One budget of memory: one mebibyte is left of it, and tens of thousands of small values are made.
TEST(Template, WhatTakesMemoryIsCharged) {
  constexpr const char* kBytes = "its texts and lists take more than 256 MiB";
  for (const auto* const large :
       {"('\n' * 60000).splitlines()", "('a,' * 30000).split(',')", "('a ' * 30000).split()", "('a ' * 30000).rsplit()",
        "['\x01' * 300000] ~ ''", "('<' * 400000) | escape", "['\x01' * 300000] | tojson", "('a\n' * 60000) | indent(40)",
        "('ŉ' * 200000) | upper", "[1] * 20000 + [2] * 20000", "([1] * 8000) | sort", "(['a'] * 10000) | map('upper')",
        "('a' * 10000) | list", "([[]] * 10000) | map('list')", "range(60000) | reverse", "'a' * 600000 + 'b' * 600000",
        "('<' * 100000) | safe + '<' * 200000", "[range(9), 1] * 20000", "[{}] * 30000"})
    EXPECT_EQ(kBytes, end_of("{% set x = " + std::string(large) + " %}", jinja::kMostSteps, 1 << 20)) << large;
  const auto grows = [](const std::string& what) {
    return "{% set ns = namespace(x=none) %}{% for i in range(9999) %}" + what + "{% endfor %}";
  };
  for (const auto* const kept :
       {"{% set ns.x = (ns.x, ) %}{% set ns.x = 1 %}", "{% set ns.x = [1].count %}", "{% set ns.x = absent %}",
        "{% set ns.x = {'a': i} %}", "{% macro m() %}{% endmacro %}", "{% set ns.x = namespace(a=i) %}",
        "{% for j in [1] %}{% set ns.x = loop %}{% endfor %}", "{% set ns.x = i | string %}", "{{ 'a' * 200 }}"})
    EXPECT_EQ(kBytes, end_of(grows(kept), jinja::kMostSteps, 1 << 20)) << kept;
  EXPECT_EQ("it makes a text of more than 64 MiB", end_of("{% set x = 'a' * 67108865 %}", jinja::kMostSteps));
}

TEST(Template, NumbersAndCallsBeyondTheirBoundsAreRefused) {
  std::string maps = "{{ 'a' | map('map'";
  for (int i = 0; i < 1'000; ++i) maps += ",'map'";
  expect_refused({{maps + ") }}", "too deeply"},
                  {"{{ range(0, 8589934592, 4294967296)[::4294967296] | length }}", "more than 64 bits is not supported"}});
  expect({{"{{ range(-9000000000000000000, 9000000000000000000, 1000000000000000000)[17] }}", "8000000000000000000"},
          {"{{ 'abc'[::-9223372036854775807] }}{{ 'abc'.replace('', '-', -9223372036854775807) }}", "c-a-b-c-"}});
}

// A value that holds another one, which holds another one, and so on, is freed without recursion; and a loop may hold itself.
TEST(Template, WhatIsNestedDeeplyIsFreedInTurn) {
  const auto grows = [](const std::string& turn) {
    return "{% set ns = namespace(x=[1], l=none) %}{% for i in range(50000) %}" + turn + "{% endfor %}";
  };
  for (const auto& source :
       {grows("{% set ns.x = [ns.x] | reverse %}"), grows("{% set ns.x = [ns.x].count %}"),
        grows("{% set ns.x = [ns.x] | select %}"), grows("{% for j in [ns.x] %}{% set ns.x = loop %}{% endfor %}"),
        grows("{% for j in [1] %}{% set c = loop.changed(ns.l) %}{% set ns.l = loop %}{% endfor %}"),
        grows("{% for j in [1] %}{% set c = loop.changed(loop) %}{% endfor %}"),
        grows("{% set g = ns.x %}{% macro m() %}{{ g }}{% endmacro %}{% set ns.x = m %}")})
    EXPECT_EQ("", write(source).text) << source;
  // The loop's own test counts its items, which needs the test again; this ends the test.
  EXPECT_EQ("123",
            write("{% set ns = namespace(l=none) %}{% for x in [1, 2, 3] if ns.l is none or ns.l.length %}{% set ns.l = loop "
                  "%}{{ x }}{% endfor %}")
                .text);
}

// Integers of any size are printed as Python prints them.
TEST(Template, IntegersOfAnySizeArePrintedAndCompared) {
  const std::string large =
      "[{\"a\": 9223372036854775807, \"b\": 9223372036854775808, \"c\": -9223372036854775809, "
      "\"d\": 100000000000000000000, \"e\": 1e20, \"f\": 123456789012345678901234567890}]";
  const auto line = R"({"messages": [{"role": "assistant", "content": "x"}], "tools": )" + large + "}";
  const auto conversation = parse_conversation(line);
  const auto with_tools = [&](const std::string& source) {
    const ChatTemplate chat(source, "the.jinja", {}, {});
    return chat.write({.messages = {}, .more = {{"tools", jinja::from_json(conversation.tools)}}}, 0, false).text;
  };
  const std::string dumped = R"([{"a": 9223372036854775807, "b": 9223372036854775808, "c": -9223372036854775809, )"
                             R"("d": 100000000000000000000, "e": 1e+20, "f": 123456789012345678901234567890}])";
  EXPECT_EQ(dumped, with_tools("{{ tools | tojson }}"));
  EXPECT_EQ(
      "[{'a': 9223372036854775807, 'b': 9223372036854775808, 'c': -9223372036854775809, 'd': 100000000000000000000, "
      "'e': 1e+20, 'f': 123456789012345678901234567890}]",
      with_tools("{{ tools }}"));
  EXPECT_EQ(
      "100000000000000000000 True True False True True False 100000000000000000000",
      with_tools("{% set d = tools[0].d %}{{ d }} {{ d is integer }} {{ d is number }} {{ d is float }} {{ d == d }} {{ d in "
                 "[1, d] }} {{ d == 1 }} {{ d | int }}"));
  for (const auto* const computes :
       {"{{ tools[0].d + 1 }}", "{{ tools[0].d < 1 }}", "{{ -tools[0].d }}", "{{ tools[0].d | float }}"})
    EXPECT_THAT([&] { static_cast<void>(with_tools(computes)); },
                testing::ThrowsMessage<Error>(HasSubstr("of more than 64 bits")))
        << computes;
}

TEST(Template, AnyBytesAreReadOrRefused) {
  EXPECT_THROW(ChatTemplate("\xff", "x", {}, {}), Error);
  EXPECT_THROW(ChatTemplate(std::string(2 << 20, 'a'), "x", {}, {}), Error);
  const std::vector<std::string> words{
      "{{",    "}}",        "{%",  "%}",       "-",    "+",    "{#",     "#}", "if", "for", "in",         "else",
      "endif", "endfor",    "set", "=",        "x",    "list", "(",      ")",  "[",  "]",   "{",          "}",
      ",",     ":",         "|",   "upper",    "is",   "not",  "'",      "\"", "\\", "1",   "1.5",        ".",
      "~",     "macro",     "m",   "endmacro", "call", "raw",  "endraw", "\n", " ",  "é",   "generation", "endgeneration",
      "loop",  "namespace", "*",   "**",       "/",    "//",   "%",      "<",  "=="};
  std::mt19937 random(7);
  const std::string whole =
      "{%- set ns = namespace(a=1) -%}{% for k, v in dict.items() if v %}{{ k ~ (v | tojson)[1:-1] }}{% else %}{# c #}{% "
      "endfor %}"
      "{% macro m(a, b='x') %}{{ a.get('c', [1, {'k': 2.5}]) }}{% endmacro %}{{ m(dict) if ns.a is odd else none }}";
  int read = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string source = whole;
    if (i % 2 == 0) source.clear();
    for (int w = 0; i % 2 == 0 && w < 20; ++w) source += words[random() % words.size()] + (random() % 3 == 0 ? " " : "");
    if (i % 2 == 1)
      source = source.substr(0, random() % source.size()) + (i % 4 == 1 ? "" : source.substr(random() % source.size()));
    try {
      write(source);
      ++read;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("\n  ")) << source;
    }
  }
  EXPECT_GT(read, 50);
  // A message may have bytes that are not UTF-8, for example from a terminal: they are kept.
  TemplateInput input;
  input.messages.push_back(
      jinja::text_value("a\xff"
                        "b"));
  const ChatTemplate chat("{{ messages[0][::-1] }}{{ messages[0] | upper }}{{ messages[0] | length }}", "x", {}, {});
  EXPECT_EQ(
      "b\xff"
      "aA\xff"
      "B3",
      chat.write(input, 1, false).text);
}

}  // namespace
}  // namespace terrace::lm
