#include <terrace/examples/lm/chat/jinja/evaluator.h>

#include <algorithm>
#include <array>
#include <ctime>

#include <fmt/format.h>

#include <terrace/core/printable.h>
#include <terrace/examples/lm/chat/jinja/arguments.h>
#include <terrace/examples/lm/chat/jinja/compare.h>
#include <terrace/examples/lm/chat/jinja/filters.h>
#include <terrace/examples/lm/chat/jinja/operators.h>

namespace terrace::lm::jinja {
namespace {

using Kind = Expression::Kind;

Value function(std::string name, std::function<Value(Runtime&, Arguments&)> call, bool is_macro = false) {
  return Value(Callable{
      std::make_shared<const Function>(Function{.name = std::move(name), .is_macro = is_macro, .call = std::move(call)})});
}

Value range(Runtime&, Arguments& given) {
  const Bound bound("range", given, {"start", "stop", "step"}, 1);
  Range out{.start = bound.number(0, 0), .stop = bound.number(1, 0), .step = bound.number(2, 1)};
  if (!bound.has(1)) out = {.start = 0, .stop = out.start, .step = 1};
  if (out.step == 0) fail("the step of 'range' is 0");
  if (out.size() > kMostOfRange) too_much(fmt::format("a range has more than {} items", kMostOfRange));
  return Value(out);
}

// The pairs of dict(a=1), dict({'a': 1}) and dict([('a', 1)]).
std::vector<Pair> pairs_of(Runtime& runtime, Arguments& given) {
  std::vector<Pair> out;
  const auto add = [&](const Value& key, const Value& value) {
    if (!is_hashable(key)) fail(fmt::format("{} cannot be a key", type_of(key)));
    runtime.work.take(1 + out.size() / 8);
    for (auto& pair : out)
      if (equal(pair.key, key, runtime.work)) {
        pair.value = value;
        return;
      }
    out.push_back({key, value});
  };
  if (given.positional.size() > 1) fail("'dict' takes one argument and named ones");
  for (const auto& first : given.positional) {
    if (const auto* const dict = first.as<Dict>()) {
      for (const auto& [key, value] : *dict->pairs) add(key, value);
      continue;
    }
    for (const auto& item : runtime.items_of(first)) {
      const auto pair = runtime.items_of(item);
      if (pair.size() != 2) fail("'dict' takes a list of pairs");
      add(pair[0], pair[1]);
    }
  }
  for (const auto& [name, value] : given.named) add(text_value(name), value);
  return out;
}

Value make_namespace(Runtime& runtime, Arguments& given) {
  auto& made = runtime.namespaces.emplace_back();
  for (auto& [key, value] : pairs_of(runtime, given)) made.set(runtime.str(key), std::move(value));
  return Value(&made);
}

Value raise_exception(Runtime& runtime, Arguments& given) {
  const Bound bound("raise_exception", given, {"message"}, 1);
  throw Fault{fmt::format("it refuses the conversation: {}", printable(runtime.str(bound[0]), 300)),
              "change the conversation, or the template"};
}

Value strftime_now(Runtime& runtime, Arguments& given) {
  const Bound bound("strftime_now", given, {"format"}, 1);
  const auto now = static_cast<std::time_t>(*runtime.now);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  std::array<char, 1024> text{};
  if (bound.text(0).empty()) return text_value({});
  const auto bytes = std::strftime(text.data(), text.size(), bound.text(0).c_str(), &parts);
  if (bytes == 0) fail("the date of 'strftime_now' is too long");
  return runtime.make_text({text.data(), bytes});
}

}  // namespace

struct Evaluator::Scope {
  ScopePtr parent;
  std::vector<std::pair<std::string, Value>> names;

  void set(const std::string& name, Value value) {
    for (auto& entry : names)
      if (entry.first == name) {
        entry.second = std::move(value);
        return;
      }
    names.emplace_back(name, std::move(value));
  }
};

class Evaluator::Deeper {
 public:
  explicit Deeper(Evaluator& evaluator) : evaluator_(evaluator) {
    evaluator_.runtime_.work.take(1);
    if (evaluator_.depth_ >= kMostDepth) too_much("macros call one another too deeply");
    ++evaluator_.depth_;
  }
  ~Deeper() { --evaluator_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Evaluator& evaluator_;
};

Evaluator::Evaluator(Runtime& runtime, std::vector<std::pair<std::string, Value>> globals)
    : runtime_(runtime), globals_(std::make_shared<Scope>()) {
  globals_->set("range", function("range", range));
  globals_->set("dict", function("dict", [](Runtime& with, Arguments& given) { return dict_value(pairs_of(with, given)); }));
  globals_->set("namespace", function("namespace", make_namespace));
  globals_->set("raise_exception", function("raise_exception", raise_exception));
  if (runtime.now)
    globals_->set("strftime_now", function("strftime_now", strftime_now));
  else
    globals_->set(
        "strftime_now",
        undefined("'strftime_now' tells no day here, so that a run writes the same text each day (--template-date names one)"));
  for (auto& global : globals) globals_->set(global.first, std::move(global.second));
}

// Macros keep scopes, and scopes keep macros.
Evaluator::~Evaluator() {
  for (auto& scope : captured_scopes_) scope->names.clear();
  for (auto& space : runtime_.namespaces) space.names.clear();
}

std::string Evaluator::write(const Body& body) {
  run(body, std::make_shared<Scope>(Scope{.parent = globals_, .names = {}}));
  return std::move(all_);
}

void Evaluator::write_text(std::string_view text) {
  runtime_.work.take_text(text.size());
  if (out_->size() + text.size() > kMostBytes) runtime_.work.take_text(kMostBytes + 1);
  *out_ += text;
}

// --- statements

Evaluator::Flow Evaluator::run(const Body& body, const ScopePtr& scope) {
  const Deeper deeper(*this);
  for (const auto& statement : body)
    if (const auto flow = run(statement, scope); flow != Flow::on) return flow;
  return Flow::on;
}

Evaluator::Flow Evaluator::run(const Statement& statement, const ScopePtr& scope) {
  line_ = statement.line;
  runtime_.work.take(1);
  const auto inner = [&] { return std::make_shared<Scope>(Scope{.parent = scope, .names = {}}); };
  auto flow = Flow::on;
  switch (statement.kind) {
    case Statement::Kind::text: write_text(statement.text); break;
    case Statement::Kind::output: write_text(runtime_.str(evaluate(*statement.expressions[0], scope))); break;
    case Statement::Kind::condition:
      for (std::size_t i = 0; i < statement.bodies.size(); ++i)
        if (i == statement.expressions.size() || is_true(evaluate(*statement.expressions[i], scope)))
          return run(statement.bodies[i], scope);
      break;
    case Statement::Kind::loop: return run_loop(statement, scope);
    case Statement::Kind::set: assign(statement.targets[0], evaluate(*statement.expressions[0], scope), scope); break;
    case Statement::Kind::set_block: {
      const auto block = inner();
      auto value = runtime_.make_text(captured(statement.bodies[0], block, flow));
      if (flow != Flow::on) return flow;
      if (statement.expressions[0]) value = filtered(*statement.expressions[0], block, &value);
      assign(statement.targets[0], value, scope);
      break;
    }
    case Statement::Kind::macro: scope->set(statement.text, macro_of(statement, scope, statement.text)); break;
    case Statement::Kind::call: run_call(statement, scope); break;
    case Statement::Kind::filter: {
      const auto block = inner();
      const auto value = runtime_.make_text(captured(statement.bodies[0], block, flow));
      if (flow != Flow::on) return flow;
      write_text(runtime_.str(filtered(*statement.expressions[0], block, &value)));
      break;
    }
    case Statement::Kind::generation: run_generation(statement, scope); break;
    case Statement::Kind::with: {
      const auto block = inner();
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
  const auto loop = std::make_shared<LoopState>();
  line_ = statement.line;
  loop->items = runtime_.items_of(over);
  if (const auto& test = statement.expressions[1]) {
    loop->has_size = false;
    loop->keeps = [this, &statement, &test, scope](Value& item) {
      const auto of_test = std::make_shared<Scope>(Scope{.parent = scope, .names = {}});
      assign(statement.targets[0], item, of_test);
      item = unpacked(statement.targets[0], item);
      return is_true(evaluate(*test, of_test));
    };
  }
  bool one_ended = false;  // as in Jinja, `else` also runs if `continue` or `break` ended each turn
  while (loop->advance()) {
    const auto turn = std::make_shared<Scope>(Scope{.parent = scope, .names = {}});
    turn->set("loop", Value(Loop{loop}));
    assign(statement.targets[0], loop->current, turn);
    const auto flow = run(statement.bodies[0], turn);
    if (flow == Flow::leave) break;
    one_ended = one_ended || flow == Flow::on;
  }
  loop->keeps = {};
  if (!one_ended && statement.bodies.size() > 1)
    return run(statement.bodies[1], std::make_shared<Scope>(Scope{.parent = scope, .names = {}}));
  return Flow::on;
}

void Evaluator::run_call(const Statement& statement, const ScopePtr& scope) {
  const auto caller = macro_of(statement, scope, "caller");
  write_text(runtime_.str(call(*statement.expressions[0], scope, &caller)));
}

void Evaluator::run_generation(const Statement& statement, const ScopePtr& scope) {
  // The library counts its place wrongly there.
  if (out_ != &all_ || in_generation_) unsupported("{% generation %} in a macro, or in another block whose text is kept");
  const auto begin = all_.size();
  in_generation_ = true;
  run(statement.bodies[0], std::make_shared<Scope>(Scope{.parent = scope, .names = {}}));
  in_generation_ = false;
  generated_.push_back({begin, all_.size()});
}

std::string Evaluator::captured(const Body& body, const ScopePtr& scope, Flow& flow) {
  std::string text;
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
  captured_scopes_.push_back(scope);
  auto call = [this, &statement, scope, name](Runtime&, Arguments& given) { return call_macro(statement, scope, name, given); };
  return function(std::move(name), std::move(call), true);
}

Value Evaluator::call_macro(const Statement& macro, const ScopePtr& scope, const std::string& name, Arguments& given) {
  const auto& names = macro.parameters.names;
  const auto& defaults = macro.parameters.defaults;
  const auto inner = std::make_shared<Scope>(Scope{.parent = scope, .names = {}});
  if (given.positional.size() > names.size())
    fail(fmt::format("the macro '{}' takes at most {} arguments", name, names.size()));
  const auto take_named = [&](std::string_view wanted) -> std::optional<Value> {
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
  if (macro.uses_caller && std::ranges::find(names, "caller") == names.end())
    inner->set("caller", take_named("caller").value_or(undefined("no caller is defined")));
  if (!given.named.empty())
    fail(fmt::format("the macro '{}' takes no argument '{}'", name, printable(given.named.front().first)));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto without_default = names.size() - defaults.size();
    if (!values[i])
      values[i] = i >= without_default ? evaluate(*defaults[i - without_default], inner)
                                       : undefined(fmt::format("parameter '{}' was not provided", names[i]));
    inner->set(names[i], std::move(*values[i]));
  }
  auto flow = Flow::on;
  return runtime_.make_text(captured(macro.bodies[0], inner, flow));
}

// As Jinja passes on what a loop tests: `for a, b in … if …` makes a tuple of each item.
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
    scope->set(target.name, value);
  } else {
    const auto of = find(target.name, *scope);
    auto* const* const space = of.as<Namespace*>();
    if (space == nullptr)
      fail(fmt::format("'{}' is no namespace, so '{}.{}' cannot be assigned to", target.name, target.name, target.attribute));
    (*space)->set(target.attribute, value);
  }
}

// --- expressions

Value Evaluator::find(const std::string& name, const Scope& scope) const {
  for (const auto* in = &scope; in != nullptr; in = in->parent.get())
    for (const auto& [known, value] : in->names)
      if (known == name) return value;
  return undefined(fmt::format("'{}' is undefined", printable(name)));
}

Value Evaluator::evaluate_or_none(const Part& part, const ScopePtr& scope) {
  return part ? evaluate(*part, scope) : Value(None());
}

Value Evaluator::evaluate(const Expression& e, const ScopePtr& scope) {
  const Deeper deeper(*this);
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
      return attribute_of(of, e.name, runtime_);
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
      return e.parts[2] ? part(2) : undefined("the inline 'if' was false and has no 'else'");
    default: {
      const auto left = part(0), right = part(1);
      line_ = e.line;
      return arithmetic(e.kind, left, right, runtime_);
    }
  }
}

Values Evaluator::values_of(const std::vector<Part>& parts, std::size_t from, const ScopePtr& scope) {
  Values out;
  for (auto i = from; i < parts.size(); ++i) out.push_back(evaluate(*parts[i], scope));
  return out;
}

Arguments Evaluator::arguments_of(const Expression& e, const ScopePtr& scope) {
  Arguments out{.positional = values_of(e.parts, 1, scope), .named = {}};
  for (const auto& [name, part] : e.named) out.named.emplace_back(name, evaluate(*part, scope));
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
  std::string out;
  for (const auto& value : values_of(e.parts, 0, scope)) out += runtime_.str(value);
  return runtime_.make_text(std::move(out));
}

Value Evaluator::dict(const Expression& e, const ScopePtr& scope) {
  auto pair = values_of(e.parts, 0, scope);
  Values items;
  for (std::size_t i = 0; i < pair.size(); i += 2) items.push_back(list_value({pair[i], pair[i + 1]}, true));
  Arguments given{.positional = {runtime_.make_list(std::move(items))}, .named = {}};
  return dict_value(pairs_of(runtime_, given));
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
  const auto keep = callable->function;  // the call may assign another value to its name
  return keep->call(runtime_, given);
}

}  // namespace terrace::lm::jinja
