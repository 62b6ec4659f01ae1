"""Random templates over a few variables, from a seed: all statements, operators, filters, tests and methods of the subset."""

import random

VARIABLES = {
    "text": "Hello, Wörld 中 {x}", "empty": "", "lines": "a b\n  c\n\nd\r\ne ", "quote": "it's \"q\"\\", "markup": "<b>&'\"</b>",
    "n": 7, "minus": -3, "zero": 0, "real": 2.5, "tiny": 1e-7, "large": 1e20, "yes": True, "no": False, "nothing": None,
    "list": [3, 1, 2], "words": ["b", "A", "c", "a"], "mixed": [1, "a", None, 2.5, [1]], "nolist": [],
    "dict": {"b": 1, "a": {"c": [1, 2]}, "items": 5}, "nodict": {},
    "records": [{"name": "x", "age": 3, "tags": ["p"]}, {"name": "Y", "age": 1}, {"name": "z", "age": 2, "tags": []}],
    "tool": {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"é": {"type": "string"}}}}},
}  # fmt: skip
MESSAGES = [{"role": "system", "content": " s "}, {"role": "user", "content": "hi\n"}, {"role": "assistant", "content": "yes", "reasoning_content": "r"},
            {"role": "user", "content": "more"}]  # fmt: skip

LITERALS = ["0", "1", "2", "-1", "3", "10", "1.5", "-0.5", "1e3", "0.1", "100000", "1_000", "0x1f", "''", "'a'", "'b '", "\"it's\"", "'é中'",
            "'\\n\\t\\x41'", "'a,b,,c'", "'A b-c d'", "'<x>'", "'42'", "' 7 '", "'1.5'", "true", "false", "none", "True", "None", "[]", "{}", "()",
            "[1, 2, 3]", "['x', 'y']", "(1, 'a')", "(1,)", "{'k': 1, 2: 'v'}", "[[1, 2], [3]]", "range(4)", "range(5, 0, -2)", "missing",
            "'ß'", "'ǆ'", "'ΑΣ'", "'they\\'re'", "'\u00a0x\u2003'", "'a\\\\b'", "'\\u200b'"]  # fmt: skip
TEXT_FILTERS = ["upper", "lower", "title", "capitalize", "trim", "trim('abH ')", "length", "replace('a', 'b')", "replace('', '-')", "replace('l', 'L', 1)",
                "string", "list", "first", "last", "reverse", "int", "float", "int(5)", "default('d')", "d('d', true)", "tojson", "indent", "indent(2, true)",
                "indent('>', blank=true)", "join('-')", "safe", "e", "escape", "count", "unique | list", "sort | list", "sort(reverse=true)", "string | length"]  # fmt: skip
LIST_FILTERS = ["list", "length", "first", "last", "join", "join(', ')", "sort", "sort(reverse=true)", "sort(case_sensitive=true)", "unique | list", "reverse | list",
                "sum", "min", "max", "tojson", "tojson(indent=2)", "map('string') | list", "map('upper') | join", "select | list", "reject('none') | list",
                "select('string') | list", "select('number') | list", "select('gt', 1) | list", "reject('in', [1, 2]) | list", "select('equalto', 1) | list",
                "map('default', 0) | list", "string", "default([])", "tojson(separators=(',', ':'))", "map('abs') | list", "map('int') | sum", "select('odd') | list"]  # fmt: skip
RECORD_FILTERS = ["map(attribute='name') | list", "map(attribute='name') | join(', ')", "selectattr('age', 'gt', 1) | list", "rejectattr('tags') | list",
                  "selectattr('tags', 'defined') | map(attribute='name') | list", "sort(attribute='age') | map(attribute='name') | list", "selectattr('name', 'equalto', 'x') | list | length",
                  "sum(attribute='age')", "map(attribute='tags.0', default='-') | list", "min(attribute='age')", "max(attribute='name')", "sort(attribute='name,age') | list",
                  "unique(attribute='name') | list | length", "join('+', attribute='age')", "(rejectattr('name', 'in', ['x']) | first).name"]  # fmt: skip
DICT_FILTERS = ["items | list", "dictsort", "dictsort(by='value')", "length", "list", "tojson", "tojson(indent=1)", "tojson(sort_keys=true)", "first", "string", "default({})", "join(',')", "tojson(ensure_ascii=true)"]  # fmt: skip
NUMBER_FILTERS = ["abs", "round", "round(1)", "round(2, 'floor')", "round(0, 'ceil')", "int", "float", "string", "default(3)", "tojson", "d(1, true)"]  # fmt: skip
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false", "odd", "even",
         "divisibleby 2", "divisibleby(3)", "equalto 1", "eq 'a'", "ne 2", "gt 1", "lt(2)", "ge 0", "le 3", "in [1, 'a']", "in 'abc'", "callable", "not none", "not defined",
         "not string", "not in [1]", "sameas true", "not mapping"]  # fmt: skip
TEXT_METHODS = ["strip()", "strip('H ')", "lstrip()", "rstrip('\\n')", "split()", "split(',')", "split(' ', 1)", "rsplit(' ', 1)", "splitlines()", "upper()", "lower()",
                "title()", "capitalize()", "startswith('H')", "endswith(('d', ' '))", "replace('l', 'L')", "replace('o', '', 1)", "find('o')", "rfind('l')", "count('l')",
                "join(['x', 'y'])", "split('\\n')[-1]", "split('</think>')[0]", "removeprefix('He')", "removesuffix('d')", "strip('\\n').split(' ')[0]", "splitlines(true)", "split(',', maxsplit=1)",
                "rsplit(',')"]  # fmt: skip
DICT_METHODS = ["get('a')", "get('q')", "get('q', 1)", "items()", "keys()", "values()", "items() | list", "keys() | list", "values() | list", "b", "a", "a.c", "a.c[1]", "q", "items() | length", "copy()"]  # fmt: skip
SLICES = ["[0]", "[-1]", "[1:]", "[:-1]", "[::-1]", "[1:3]", "[::2]", "[-2:]", "[5]", "[:2:-1]", "['a']", "[n]", "[:n]", "['name']", "[minus:]", "[100:]", "[-100:2]", "[true]"]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]


class Templates:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, some):
        return self.random.choice(some)

    def chance(self, share):
        return self.random.random() < share

    def atom(self):
        if self.chance(0.45):
            return self.pick(LITERALS)
        return self.pick([*VARIABLES, "x", "ns.a", "messages", "messages[0]", "messages[-1].content", "records[0]", "dict.a", "dict['items']", "tool.function"])

    def number(self, depth):
        if depth == 0 or self.chance(0.3):
            return self.pick(["n", "minus", "zero", "real", "tiny", "0", "1", "2", "3", "1.5", "-2", "yes", "ns.a", "dict.b", "10", "records[1].age", "list[0]"])
        a, b = self.number(depth - 1), self.number(depth - 1)
        return self.pick([f"({a} {self.pick(['+', '-', '*', '/', '//', '%'])} {b})", f"{a} {self.pick(['+', '-', '*'])} {b}", f"(({a}) | {self.pick(NUMBER_FILTERS[:7])})",
                          f"({self.text(depth - 1)}) | length", f"({self.list(depth - 1)}) | length", f"({self.text(depth - 1)}) | int", f"-{a}", f"({a}) ** 2",
                          f"({self.truth(depth - 1)}) | int", f"({self.text(depth - 1)}).find('l')"])  # fmt: skip

    def text(self, depth):
        if depth == 0 or self.chance(0.25):
            return self.pick(["text", "lines", "quote", "empty", "markup", "messages[0].content", "messages[1]['content']", "words[0]", "records[0].name", *[x for x in LITERALS if x[0] in "'\""]])
        a, b = self.text(depth - 1), self.text(depth - 1)
        methods = [m for m in TEXT_METHODS if "split" not in m and "find" not in m and "count" not in m and "with" not in m]
        return self.pick([f"({a} + {b})", f"({a} ~ {self.any(depth - 1)})", f"({a}).{self.pick(methods)}", f"(({a}) | {self.pick(TEXT_FILTERS[:6])})", f"({a})[{self.pick(['1:', ':3', '::-1', '-2:', 'n:', '1:5:2'])}]",
                          f"(({self.any(depth - 1)}) | {self.pick(['string', 'tojson', 'tojson(indent=2)'])})", f"(({self.list(depth - 1)}) | join({b}))", f"({a} if {self.truth(depth - 1)} else {b})", f"({a}) * 2",
                          f"(({a}) | {self.pick(['indent', 'indent(2, true)', 'replace(' + repr('a') + ', ' + b + ')', 'default(' + b + ', true)'])})",
                          f"({b}).join(['x', {a}])", f"({a}).replace({self.pick(LITERALS[15:22])}, {b})", f"m({a})" if self.chance(0.3) else a])  # fmt: skip

    def list(self, depth):
        if depth == 0 or self.chance(0.25):
            return self.pick(["list", "words", "mixed", "nolist", "range(4)", "[1, 2, 3]", "['x', 'y']", "(1, 'a')", "records", "messages", "range(5, 0, -2)", "dict.a.c"])
        a = self.list(depth - 1)
        return self.pick([f"[{self.any(depth - 1)}, {self.any(depth - 1)}]", f"({a})[{self.pick(['1:', '::-1', ':2', '-1:', '::2', '5:1:-1'])}]", f"(({a}) | {self.pick(['list', 'reverse | list', 'map(' + repr('string') + ') | list'])})",
                          f"({self.text(depth - 1)}).{self.pick(['split()', 'split(' + repr(',') + ')', 'splitlines()', 'rsplit(' + repr(' ') + ', 1)'])}", f"(({a}) | {self.pick([f for f in LIST_FILTERS if f.endswith('list')])})",
                          f"(records | {self.pick([f for f in RECORD_FILTERS if f.endswith('list')])})", f"(({a}) | list + [{self.any(depth - 1)}])", f"{self.dict(depth - 1)} | {self.pick(['items | list', 'dictsort', 'list'])}",
                          f"({self.text(depth - 1)} | list)"])  # fmt: skip

    def dict(self, depth):
        if depth == 0:
            return self.pick(["dict", "nodict", "tool", "records[0]", "messages[2]", "{'k': 1, 2: 'v'}"])
        return self.pick([f"{{'p': {self.any(depth - 1)}, {self.pick(['1', 'true', 'none', repr('q')])}: {self.any(depth - 1)}}}", f"dict(r={self.any(depth - 1)})", f"dict(dict, b={self.any(depth - 1)})"])

    def truth(self, depth):
        if depth == 0:
            return self.pick(["yes", "no", "true", "missing", "missing is defined", "dict.q is defined", "n", "empty"])
        a, b = self.any(depth - 1), self.any(depth - 1)
        return self.pick([f"({a} == {b})", f"({a} != {b})", f"({self.number(depth - 1)} < {self.number(depth - 1)} <= {self.number(depth - 1)})", f"({self.text(depth - 1)} < {self.text(depth - 1)})",
                          f"({self.text(depth - 1)} in {self.text(depth - 1)})", f"({a} in {self.list(depth - 1)})", f"({a} and {b})", f"({a} or {b})", f"(not {a})", f"({a} is {self.pick(TESTS[:13])})",
                          f"({self.number(depth - 1)} is {self.pick(TESTS[13:23])})", f"('a' not in {self.dict(depth - 1)})", f"({self.text(depth - 1)}).startswith({self.text(0)})", f"({a} is not {self.pick(TESTS[:12])})"])  # fmt: skip

    def any(self, depth):
        return self.pick([self.number, self.text, self.list, self.dict, self.truth, self.text])(depth)

    def expression(self, depth):
        return self.wild(min(depth, 2)) if self.chance(0.25) else self.any(depth)

    def wild(self, depth):
        if depth == 0 or self.chance(0.12):
            return self.atom()
        inner = lambda: self.wild(depth - 1)  # noqa: E731
        kind = self.random.randrange(16)
        if kind <= 2:
            return f"{inner()} {self.pick(BINARY)} {inner()}"
        if kind == 3:
            return f"({inner()} {self.pick(BINARY)} {inner()})"
        if kind == 4:
            return f"({inner()}) | {self.pick(self.pick([TEXT_FILTERS, LIST_FILTERS, DICT_FILTERS, NUMBER_FILTERS]))}"
        if kind == 5:
            return f"({inner()}) is {self.pick(TESTS)}"
        if kind == 6:
            return f"({inner()} if {inner()} else {inner()})" if self.chance(0.8) else f"({inner()} if {inner()})"
        if kind == 7:
            return self.pick(["not ", "-", "+", "- -"]) + self.atom()
        if kind == 8:
            return f"{self.pick(['text', 'lines', 'quote', 'empty', 'messages[1].content', '(' + inner() + ')'])}.{self.pick(TEXT_METHODS)}"
        if kind == 9:
            return f"{self.pick(['dict', 'nodict', 'records[0]', 'tool.function', '(' + inner() + ')'])}.{self.pick(DICT_METHODS)}"
        if kind == 10:
            return f"{self.pick(['text', 'list', 'words', 'range(9)', 'records', '(' + inner() + ')', 'mixed'])}{self.pick(SLICES)}"
        if kind == 11:
            return f"{self.pick(['records', 'messages', 'nolist'])} | {self.pick(RECORD_FILTERS)}"
        if kind == 12:
            filters, of = self.pick([(TEXT_FILTERS, ["text", "lines", "quote", "markup", "'Ab c'"]), (LIST_FILTERS, ["list", "words", "mixed", "range(3)"]),
                                     (DICT_FILTERS, ["dict", "tool", "records[0]", "nodict"]), (NUMBER_FILTERS, ["n", "minus", "real", "tiny", "2.675"])])  # fmt: skip
            return f"{self.pick(of)} | {self.pick(filters)}"
        if kind == 13:
            return self.pick(["[{}, {}]", "({}, {})", "{{'p': {}, 'q': {}}}", "dict(r={}, s={})"]).format(inner(), inner())
        if kind == 14:
            return f"{self.atom()} {self.pick(['<', '==', '<=', '!='])} {self.atom()} {self.pick(['<', '==', 'in', '>'])} {self.atom()}"
        return f"{self.pick(['m', 'm2'])}({inner()}{self.pick(['', ', ' + inner(), ', b=' + inner()])})" if self.chance(0.3) else f"({inner()})"

    def space(self):
        return self.pick([" ", "  ", "\n", " \n ", "\n  ", "", "", "t ", "x"])

    def tag(self, inside):
        return "{%" + self.pick(["", "", "-", "+"]) + " " + inside + " " + self.pick(["", "", "-", "+"]) + "%}"

    def output(self):
        return "{{" + self.pick(["", "", "-"]) + " " + self.expression(self.random.randint(1, 3)) + " " + self.pick(["", "", "-"]) + "}}"

    def body(self, depth, in_loop):
        return "".join(self.space() + self.statement(depth, in_loop) + self.space() for _ in range(self.random.randint(1, 3)))

    def statement(self, depth, in_loop):
        if depth == 0 or self.chance(0.3):
            return self.output()
        body = lambda loop=in_loop: self.body(depth - 1, loop)  # noqa: E731
        value = lambda: self.expression(self.random.randint(1, 2))  # noqa: E731
        kind = self.random.randrange(14)
        if kind <= 1:
            middle = self.tag(f"elif {value()}") + body() if self.chance(0.4) else ""
            end = self.tag("else") + body() if self.chance(0.5) else ""
            return self.tag(f"if {value()}") + body() + middle + end + self.tag("endif")
        if kind <= 4:
            target, over = self.pick([("x", "list"), ("x", "words"), ("x", "messages"), ("x", "range(3)"), ("k, v", "dict.items()"), ("k, v", "dict | items"), ("x", "records"),
                                      ("x", value()), ("x", "text[:3]"), ("x", "nolist"), ("k, v", "[(1, 2), 'ab']")])  # fmt: skip
            condition = self.pick([f" if {value()}", " if x != 1", " if loop is undefined"]) if self.chance(0.3) else ""
            inside = "".join(self.pick(["{{ loop.index }}", "{{ loop.index0 }}", "{{ loop.first }}", "{{ loop.last }}", "{{ loop.length }}", "{{ loop.previtem }}", "{{ loop.nextitem }}",
                                        "{{ loop.revindex }}", "{{ loop.cycle('o', 'e') }}", "{{ loop.changed(x) }}", "{{ x }}", ""]) for _ in range(3))  # fmt: skip
            if self.chance(0.3):
                inside += self.tag(f"if {value()}") + self.tag(self.pick(["break", "continue"])) + self.tag("endif")
            end = self.tag("else") + body() if self.chance(0.3) else ""
            return self.tag(f"for {target} in {over}{condition}") + inside + body(True) + end + self.tag("endfor")
        if kind <= 6:
            return self.tag(self.pick([f"set x = {value()}", f"set ns.a = {value()}", f"set x, y = {value()}, {value()}", f"set x, ns.a = {value()}, 1"])) + "{{ x }}{{ ns.a }}"
        if kind == 7:
            return self.tag("set x" + self.pick(["", " | upper", " | trim | length"])) + body() + self.tag("endset") + "[{{ x }}]"
        if kind == 8:
            name = self.pick(["m", "m2"])
            return self.tag(f"macro {name}(a, b={self.atom()})") + "{{ a }}{{ b }}" + self.pick(["", "{{ x }}", "{{ caller() }}", "{{ caller(a) }}"]) + body(False) + self.tag("endmacro") + "{{ " + name + "(1) }}"
        if kind == 9:
            return self.tag(self.pick(["call m(1)", "call m2(2)", "call(x) m(3)"])) + body(False) + self.tag("endcall")
        if kind == 10:
            return self.tag(self.pick(["filter upper", "filter trim | replace('a', 'b')"])) + body() + self.tag("endfilter")
        if kind == 11:
            return self.tag(f"with x = {value()}, y = x") + body() + "{{ y }}" + self.tag("endwith")
        if kind == 12:
            return self.pick(["{# c #}", "{#- c -#}", "{# {{ x }} #}\n", self.tag("raw") + " {{ x }} " + self.tag("endraw")])
        return self.tag("generation") + body(False) + self.tag("endgeneration")

    def template(self):
        if self.chance(0.5):
            return "{{ " + self.expression(self.random.randint(1, 4)) + " }}"
        begin = "{%- set ns = namespace(a=1) -%}" + ("{% macro m(a, b=2) %}<{{ a }}{{ b }}>{% endmacro %}" if self.chance(0.5) else "")
        return begin + self.body(3, False) + self.pick(["", "\n", "\n\n"])
