#include <terrace/examples/lm/chat/jinja/evaluator.h>

#include <algorithm>
#include <array>
#include <ctime>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/examples/lm/chat/jinja/arguments.h>
#include <terrace/examples/lm/chat/jinja/compare.h>
#include <terrace/examples/lm/chat/jinja/filters.h>
#include <terrace/examples/lm/chat/jinja/operators.h>
#include <terrace/examples/lm/chat/jinja/shared.h>

namespace terrace::lm::jinja {
namespace {

using Kind = Expression::Kind;

Value range(Runtime&, Arguments& given) {
  const Bound bound("range", given, {"start", "stop", "step"}, 1);
  Range out{.start = bound.number(0, 0), .stop = bound.number(1, 0), .step = bound.number(2, 1)};
  if (!bound.has(1)) out = {.start = 0, .stop = out.start, .step = 1};
  if (out.step == 0) fail("the step of 'range' is 0");
  if (out.size() > kMostOfRange) too_much(fmt::format("a range has more than {} items", kMostOfRange));
  return Value(out);
}

// Adds a pair. If the key is already there, its value is replaced and it keeps its place.
void add_pair(std::vector<Pair>& to, const Value& key, const Value& value, Runtime& runtime) {
  if (!is_hashable(key, runtime.work)) fail(fmt::format("{} cannot be a key", type_of(key)));
  runtime.work.take(1 + to.size() / 8);
  for (auto& pair : to)
    if (equal(pair.key, key, runtime.work)) {
      pair.value = value;
      return;
    }
  runtime.work.take_bytes(2 * sizeof(Pair));
  to.push_back({key, value});
}

Value dict_of(std::vector<Pair> pairs, Runtime& runtime) {
  runtime.work.take_object();
  return dict_value(std::move(pairs));
}

// The pairs of dict(a=1), dict({'a': 1}) and dict([('a', 1)]).
std::vector<Pair> pairs_of(Runtime& runtime, Arguments& given) {
  std::vector<Pair> out;
  if (given.positional.size() > 1) fail("'dict' takes one argument and named ones");
  for (const auto& first : given.positional) {
    if (const auto* const dict = first.as<Dict>()) {
      for (const auto& [key, value] : *dict->pairs) add_pair(out, key, value, runtime);
      continue;
    }
    for (const auto& item : runtime.items_of(first)) {
      const auto pair = runtime.items_of(item);
      if (pair.size() != 2) fail("'dict' takes a list of pairs");
      add_pair(out, pair[0], pair[1], runtime);
    }
  }
  for (const auto& [name, value] : given.named) add_pair(out, runtime.make_text(name), value, runtime);
  return out;
}

Value make_namespace(Runtime& runtime, Arguments& given) {
  runtime.work.take_object();
  auto& made = runtime.namespaces.emplace_back();
  for (auto& [key, value] : pairs_of(runtime, given))
    made.names.set(*runtime.str(key).text(), std::move(value), runtime.work, true);
  return Value(&made);
}

Value raise_exception(Runtime& runtime, Arguments& given) {
  const Bound bound("raise_exception", given, {"message"}, 1);
  throw Fault{fmt::format("it refuses the conversation: {}", base::printable(*runtime.str(bound[0]).text(), 300)),
              "change the conversation, or the template"};
}

Value strftime_now(Runtime& runtime, Arguments& given) {
  const Bound bound("strftime_now", given, {"format"}, 1);
  const auto now = static_cast<std::time_t>(*runtime.now);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  std::array<char, 1024> text{};
  if (bound.text(0).empty()) return text_value({});
  runtime.work.take(20 + 2 * bound.text(0).size());
  const auto bytes = std::strftime(text.data(), text.size(), bound.text(0).c_str(), &parts);
  if (bytes == 0) fail("the date of 'strftime_now' is too long");
  return runtime.make_text(std::string_view(text.data(), bytes));
}

}  // namespace

struct Evaluator::Scope {
  ScopePtr parent;
  Names names;
  bool kept = false;  // a macro refers to it until the template ends
};

Evaluator::Evaluator(Runtime& runtime, std::vector<std::pair<std::string, Value>> globals)
    : runtime_(runtime), globals_(std::make_shared<Scope>()), all_(runtime.work) {
  const auto function = [&](const char* name, std::function<Value(Runtime&, Arguments&)> call) {
    set(globals_, name, runtime_.make_function(name, std::move(call)));
  };
  function("range", range);
  function("dict", [](Runtime& with, Arguments& given) { return dict_of(pairs_of(with, given), with); });
  function("namespace", make_namespace);
  function("raise_exception", raise_exception);
  if (runtime.now)
    function("strftime_now", strftime_now);
  else
    set(globals_, "strftime_now",
        undefined("'strftime_now' tells no day here, so that a run writes the same text each day (--template-date names one)"));
  for (auto& global : globals) set(globals_, global.first, std::move(global.second));
}

// Breaks reference cycles: macros and scopes refer to each other, and a loop may contain a value that it is compared with.
Evaluator::~Evaluator() {
  for (auto& scope : kept_scopes_) scope->names.clear();
  for (auto& space : runtime_.namespaces) space.names.clear();
  for (auto& values : runtime_.last_changed) values.clear();
}

std::string Evaluator::write(const Body& body) {
  run(body, inside(globals_));
  return all_.take();
}

void Evaluator::write_value(const Value& value) {
  if (value.text() != nullptr)
    out_->add(*value.text());
  else
    print(value, false, *out_, runtime_);
}

// --- scopes

Evaluator::ScopePtr Evaluator::inside(const ScopePtr& scope) {
  runtime_.work.take(1);
  return std::make_shared<Scope>(Scope{.parent = scope, .names = {}});
}

void Evaluator::set(const ScopePtr& scope, std::string_view name, Value value) {
  scope->names.set(name, std::move(value), runtime_.work, scope->kept);
}

// Charges the memory of a scope and its parents, because they now live until the template ends.
void Evaluator::keep(const ScopePtr& scope) {
  for (auto one = scope; one != nullptr && !one->kept; one = one->parent) {
    one->kept = true;
    runtime_.work.take_bytes(kBytesOfAnObject + one->names.size() * kBytesOfAName);
    kept_scopes_.push_back(one);
  }
}

// --- statements

Evaluator::Flow Evaluator::run(const Body& body, const ScopePtr& scope) {
  const Runtime::Deeper deeper(runtime_);
  for (const auto& statement : body)
    if (const auto flow = run(statement, scope); flow != Flow::on) return flow;
  return Flow::on;
}

Evaluator::Flow Evaluator::run(const Statement& statement, const ScopePtr& scope) {
  line_ = statement.line;
  runtime_.work.take(1);
  auto flow = Flow::on;
  switch (statement.kind) {
    case Statement::Kind::text: out_->add(statement.text); break;
    case Statement::Kind::output: write_value(evaluate(*statement.expressions[0], scope)); break;
    case Statement::Kind::condition:
      for (std::size_t i = 0; i < statement.bodies.size(); ++i)
        if (i == statement.expressions.size() || is_true(evaluate(*statement.expressions[i], scope)))
          return run(statement.bodies[i], scope);
      break;
    case Statement::Kind::loop: return run_loop(statement, scope);
    case Statement::Kind::set: assign(statement.targets[0], evaluate(*statement.expressions[0], scope), scope); break;
    case Statement::Kind::set_block: {
      const auto block = inside(scope);
      auto value = runtime_.make_text(captured(statement.bodies[0], block, flow));
      if (flow != Flow::on) return flow;
      if (statement.expressions[0]) value = filtered(*statement.expressions[0], block, &value);
      assign(statement.targets[0], value, scope);
      break;
    }
    case Statement::Kind::macro: set(scope, statement.text, macro_of(statement, scope, statement.text)); break;
    case Statement::Kind::call: run_call(statement, scope); break;
    case Statement::Kind::filter: {
      const auto block = inside(scope);
      const auto value = runtime_.make_text(captured(statement.bodies[0], block, flow));
      if (flow != Flow::on) return flow;
      write_value(filtered(*statement.expressions[0], block, &value));
      break;
    }
    case Statement::Kind::generation: run_generation(statement, scope); break;
    case Statement::Kind::with: {
      const auto block = inside(scope);
      for (std::size_t i = 0; i < statement.targets.size(); ++i)
        assign(statement.targets[i], evaluate(*statement.expressions[i], scope), block);
      return run(statement.bodies[0], block);
    }
    case Statement::Kind::leave: return Flow::leave;
    case Statement::Kind::go_on: return Flow::go_on;
  }
  return Flow::on;
}

Evaluator::Flow Evaluator::run_loop(const Statement& statement, const ScopePtr& scope) {
  const auto over = evaluate(*statement.expressions[0], scope);
  line_ = statement.line;
  runtime_.work.take_object();
  runtime_.work.take_bytes(sizeof(LoopState));
  const auto loop = shared(LoopState());
  loop->items = runtime_.items_of(over);
  if (const auto& test = statement.expressions[1]) {
    loop->has_size = false;
    loop->keeps = [this, &statement, &test, scope](Value& item) {
      runtime_.work.take_bytes(2 * sizeof(Value));  // for the list that count() makes
      const auto of_test = inside(scope);
      assign(statement.targets[0], item, of_test);
      item = unpacked(statement.targets[0], item);
      return is_true(evaluate(*test, of_test));
    };
  }
  bool one_ended = false;  // as in Jinja, `else` also runs if `continue` or `break` ended every turn
  while (loop->advance()) {
    const auto turn = inside(scope);
    set(turn, "loop", Value(Loop{loop}));
    assign(statement.targets[0], loop->current, turn);
    const auto flow = run(statement.bodies[0], turn);
    if (flow == Flow::leave) break;
    one_ended = one_ended || flow == Flow::on;
  }
  loop->keeps = {};
  if (!one_ended && statement.bodies.size() > 1) return run(statement.bodies[1], inside(scope));
  return Flow::on;
}

void Evaluator::run_call(const Statement& statement, const ScopePtr& scope) {
  const auto caller = macro_of(statement, scope, "caller");
  write_value(call(*statement.expressions[0], scope, &caller));
}

void Evaluator::run_generation(const Statement& statement, const ScopePtr& scope) {
  // In these places the library computes the position wrongly.
  if (out_ != &all_ || in_generation_) unsupported("{% generation %} in a macro, or in another block whose text is kept");
  const auto begin = all_.size();
  in_generation_ = true;
  run(statement.bodies[0], inside(scope));
  in_generation_ = false;
  generated_.push_back({begin, all_.size()});
}

Draft Evaluator::captured(const Body& body, const ScopePtr& scope, Flow& flow) {
  Draft text(runtime_.work);
  auto* const outer = std::exchange(out_, &text);
  try {
    flow = run(body, scope);
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  return text;
}

Value Evaluator::macro_of(const Statement& statement, const ScopePtr& scope, std::string name) {
  keep(scope);
  auto call = [this, &statement, scope, name](Runtime&, Arguments& given) { return call_macro(statement, scope, name, given); };
  return runtime_.make_function(std::move(name), std::move(call), true);
}

Value Evaluator::call_macro(const Statement& macro, const ScopePtr& scope, const std::string& name, Arguments& given) {
  const auto& names = macro.parameters.names;
  const auto& defaults = macro.parameters.defaults;
  const auto inner = inside(scope);
  if (given.positional.size() > names.size())
    fail(fmt::format("the macro '{}' takes at most {} arguments", base::printable(name), names.size()));
  const auto take_named = [&](std::string_view wanted) -> std::optional<Value> {
    runtime_.work.take(1 + given.named.size());
    const auto found =
        std::ranges::find(given.named, wanted, [](const auto& entry) -> std::string_view { return entry.first; });
    if (found == given.named.end()) return {};
    auto value = std::move(found->second);
    given.named.erase(found);
    return value;
  };
  std::vector<std::optional<Value>> values(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i < given.positional.size())
      values[i] = std::move(given.positional[i]);
    else
      values[i] = take_named(names[i]);
  }
  if (macro.uses_caller && std::ranges::find(names, "caller") == names.end()) {
    auto caller = take_named("caller");
    set(inner, "caller", caller ? std::move(*caller) : runtime_.make_undefined("no caller is defined"));
  }
  if (!given.named.empty())
    fail(fmt::format("the macro '{}' takes no argument '{}'", base::printable(name),
                     base::printable(given.named.front().first)));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto without_default = names.size() - defaults.size();
    if (!values[i])
      values[i] = i >= without_default
                      ? evaluate(*defaults[i - without_default], inner)
                      : runtime_.make_undefined(fmt::format("parameter '{}' was not provided", base::printable(names[i])));
    set(inner, names[i], std::move(*values[i]));
  }
  auto flow = Flow::on;
  return runtime_.make_text(captured(macro.bodies[0], inner, flow));
}

// As in Jinja, the test in `for a, b in … if …` sees each item as a tuple.
Value Evaluator::unpacked(const Target& target, const Value& value) {
  if (!target.is_tuple) return value;
  auto items = runtime_.items_of(value);
  for (std::size_t i = 0; i < items.size(); ++i) items[i] = unpacked(target.parts[i], items[i]);
  return runtime_.make_list(std::move(items), true);
}

void Evaluator::assign(const Target& target, const Value& value, const ScopePtr& scope) {
  if (target.is_tuple) {
    const auto items = runtime_.items_of(value);
    if (items.size() != target.parts.size())
      fail(fmt::format("{} values cannot be assigned to {} names", items.size(), target.parts.size()));
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i], scope);
  } else if (target.attribute.empty()) {
    set(scope, target.name, value);
  } else {
    const auto of = find(target.name, *scope);
    auto* const* const space = of.as<Namespace*>();
    if (space == nullptr)
      fail(fmt::format("'{0}' is no namespace, so '{0}.{1}' cannot be assigned to", base::printable(target.name),
                       base::printable(target.attribute)));
    (*space)->names.set(target.attribute, value, runtime_.work, true);
  }
}

// --- expressions

Value Evaluator::find(const std::string& name, const Scope& scope) {
  constexpr std::size_t kBytesOfAScope = 8;
  const Value* found = nullptr;
  std::size_t read = 0;
  for (const auto* in = &scope; in != nullptr && found == nullptr; in = in->parent.get()) {
    read += kBytesOfAScope;
    found = in->names.find(name, read);
  }
  runtime_.work.take_read(read);
  return found != nullptr ? *found : runtime_.make_undefined(fmt::format("'{}' is undefined", base::printable(name)));
}

Value Evaluator::evaluate_or_none(const Part& part, const ScopePtr& scope) {
  return part ? evaluate(*part, scope) : Value(None());
}

Value Evaluator::evaluate(const Expression& e, const ScopePtr& scope) {
  const Runtime::Deeper deeper(runtime_);
  line_ = e.line;
  const auto part = [&](std::size_t i) { return evaluate(*e.parts[i], scope); };
  switch (e.kind) {
    case Kind::constant: return e.constant;
    case Kind::name: return find(e.name, *scope);
    case Kind::list:
    case Kind::tuple: return runtime_.make_list(values_of(e.parts, 0, scope), e.kind == Kind::tuple);
    case Kind::dict: return dict(e, scope);
    case Kind::attribute: {
      const auto of = part(0);
      line_ = e.line;
      return attribute_of(of, e.constant, runtime_);
    }
    case Kind::item: {
      const auto of = part(0), key = part(1);
      line_ = e.line;
      return item_of(of, key, runtime_);
    }
    case Kind::slice: {
      const auto of = part(0), start = evaluate_or_none(e.parts[1], scope), stop = evaluate_or_none(e.parts[2], scope),
                 step = evaluate_or_none(e.parts[3], scope);
      line_ = e.line;
      return slice_of(of, start, stop, step, runtime_);
    }
    case Kind::call: return call(e, scope, nullptr);
    case Kind::filter: return filtered(e, scope, nullptr);
    case Kind::test: {
      const auto of = part(0);
      auto given = arguments_of(e, scope);
      line_ = e.line;
      return Value(apply_test(e.name, of, given, runtime_));
    }
    case Kind::minus: return negative(part(0));
    case Kind::plus: return positive(part(0));
    case Kind::inverse: return Value(!is_true(part(0)));
    case Kind::concat: return concat(e, scope);
    case Kind::compare: return Value(compare_chain(e, scope));
    case Kind::both: {
      auto left = part(0);
      return is_true(left) ? part(1) : left;
    }
    case Kind::either: {
      auto left = part(0);
      return is_true(left) ? left : part(1);
    }
    case Kind::choice:
      if (is_true(part(0))) return part(1);
      return e.parts[2] ? part(2) : runtime_.make_undefined("the inline 'if' was false and has no 'else'");
    default: {
      const auto left = part(0), right = part(1);
      line_ = e.line;
      return arithmetic(e.kind, left, right, runtime_);
    }
  }
}

Values Evaluator::values_of(const std::vector<Part>& parts, std::size_t from, const ScopePtr& scope) {
  auto out = runtime_.make_room(parts.size() - from);
  for (auto i = from; i < parts.size(); ++i) out.push_back(evaluate(*parts[i], scope));
  return out;
}

Arguments Evaluator::arguments_of(const Expression& e, const ScopePtr& scope) {
  Arguments out{.positional = values_of(e.parts, 1, scope), .named = {}};
  for (const auto& [name, part] : e.named) {
    runtime_.work.take_read(name.size());
    out.named.emplace_back(name, evaluate(*part, scope));
  }
  return out;
}

bool Evaluator::compare_chain(const Expression& e, const ScopePtr& scope) {
  auto left = evaluate(*e.parts[0], scope);
  for (std::size_t i = 0; i < e.compared.size(); ++i) {
    auto right = evaluate(*e.parts[i + 1], scope);
    line_ = e.line;
    if (!compare(e.compared[i], left, right, runtime_)) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::concat(const Expression& e, const ScopePtr& scope) {
  Draft out(runtime_.work);
  for (const auto& value : values_of(e.parts, 0, scope)) out.add(*runtime_.str(value).text());
  return runtime_.make_text(std::move(out));
}

Value Evaluator::dict(const Expression& e, const ScopePtr& scope) {
  const auto values = values_of(e.parts, 0, scope);
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < values.size(); i += 2) add_pair(pairs, values[i], values[i + 1], runtime_);
  return dict_of(std::move(pairs), runtime_);
}

Value Evaluator::filtered(const Expression& e, const ScopePtr& scope, const Value* captured) {
  const auto& inner = e.parts[0];
  const auto of = inner == nullptr                                     ? *captured
                  : inner->kind == Kind::filter && captured != nullptr ? filtered(*inner, scope, captured)
                                                                       : evaluate(*inner, scope);
  auto given = arguments_of(e, scope);
  line_ = e.line;
  return apply_filter(e.name, of, given, runtime_);
}

Value Evaluator::call(const Expression& e, const ScopePtr& scope, const Value* caller) {
  const auto of = evaluate(*e.parts[0], scope);
  auto given = arguments_of(e, scope);
  if (caller != nullptr) given.named.emplace_back("caller", *caller);
  line_ = e.line;
  demand_defined(of);
  const auto* const callable = of.as<Callable>();
  if (of.is<Loop>()) unsupported("calling `loop`");
  if (callable == nullptr) fail(fmt::format("{} cannot be called", type_of(of)));
  const auto keep = callable->function;  // keeps the function alive: the call may assign another value to its name
  return keep->call(runtime_, given);
}

}  // namespace terrace::lm::jinja
