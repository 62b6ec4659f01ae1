// The syntax tree of a template: nested expressions and statements.
//
// Owner: each node owns its parts. Threads: any, for reading. Errors: none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <terrace/examples/lm/chat/jinja/value.h>

namespace terrace::lm::jinja {

struct Expression;
using Part = std::unique_ptr<Expression>;

enum class Compared : std::uint8_t { equal, unequal, less, less_equal, greater, greater_equal, in, not_in };

struct Expression {
  enum class Kind : std::uint8_t {
    constant,
    name,
    list,
    tuple,
    dict,       // key, value, key, value, …
    attribute,  // of parts[0]; the constant is its name
    item,       // parts[0][parts[1]]
    slice,      // parts[0][parts[1]:parts[2]:parts[3]]; each of the three may be absent
    call,       // parts[0](parts[1], …, named…)
    filter,     // parts[0]|name(parts[1], …, named…)
    test,       // parts[0] is name(parts[1], …, named…)
    minus,
    plus,
    inverse,  // not
    add,
    subtract,
    multiply,
    divide,
    divide_whole,
    remainder,
    power,
    concat,   // ~ of all parts
    compare,  // a chain: parts[0] compared[0] parts[1] compared[1] parts[2] …
    both,     // and
    either,   // or
    choice,   // parts[1] if parts[0] else parts[2]; the latter may be absent
  };
  Kind kind = Kind::constant;
  int line = 1;
  int height = 1;  // of the tree below this node
  Value constant;
  std::string name;
  std::vector<Part> parts;
  std::vector<std::pair<std::string, Part>> named;
  std::vector<Compared> compared;
};

// The target of an assignment: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  std::string name, attribute;
  std::vector<Target> parts;
  bool is_tuple = false;
};

struct Statement;
using Body = std::vector<Statement>;

struct Parameters {
  std::vector<std::string> names;
  std::vector<Part> defaults;  // of the last parameters
};

struct Statement {
  enum class Kind : std::uint8_t {
    text,
    output,      // expressions[0]
    condition,   // bodies[i] for the first true expressions[i]; the last body may have no expression
    loop,        // target in expressions[0] if expressions[1]: bodies[0]; bodies[1] if there are no items
    set,         // target = expressions[0]
    set_block,   // target = bodies[0], filtered by expressions[0] if present
    macro,       // name(parameters): bodies[0]
    call,        // expressions[0]; its caller(parameters) is bodies[0]
    filter,      // bodies[0], filtered by expressions[0]
    generation,  // bodies[0]
    with,        // targets = expressions: bodies[0]
    leave,       // break
    go_on,       // continue
  };
  Kind kind = Kind::text;
  int line = 1;
  std::string text;  // or a name
  std::vector<Part> expressions;
  std::vector<Body> bodies;
  std::vector<Target> targets;
  Parameters parameters;
  bool uses_caller = false;  // for a macro
};

}  // namespace terrace::lm::jinja
