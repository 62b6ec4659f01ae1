#include <terrace/examples/lm/chat/jinja/value.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/examples/lm/chat/jinja/code_points.h>
#include <terrace/examples/lm/chat/jinja/compare.h>
#include <terrace/examples/lm/chat/jinja/shared.h>

namespace terrace::lm::jinja {
namespace {

int nesting_of(const Value& value) {
  if (const auto* const sequence = value.as<Sequence>()) return sequence->nesting;
  if (const auto* const dict = value.as<Dict>()) return dict->nesting;
  if (const auto* const view = value.as<View>()) return view->dict.nesting;
  return 0;  // printing and comparing do not look into other kinds of values, so their depth does not count
}

int one_more(int deepest) {
  if (deepest >= kMostNesting) too_much(fmt::format("it nests lists and dicts more than {} deep", kMostNesting));
  return deepest + 1;
}

template <class Entries>
auto find_in(Entries& all, std::string_view name, std::size_t& read) -> decltype(&all.front().second) {
  constexpr std::size_t kBytesOfAnEntry = 4;
  for (auto& [known, value] : all) {
    read += kBytesOfAnEntry + (known.size() == name.size() ? name.size() : 0);
    if (known == name) return &value;
  }
  return nullptr;
}

// Python prints an address for these values, and it differs in each run.
[[noreturn]] void no_print(const std::string& what) {
  unsupported(fmt::format("printing {}, which has an address in Python (`list` makes a list of what can be iterated)", what));
}

class Printer {
 public:
  Printer(Draft& out, Runtime& runtime) : out_(out), runtime_(runtime) {}

  void print(const Value& value, bool quoted) {
    if (++depth_ > 2 * kMostNesting) too_much("a namespace that is part of itself is printed");
    runtime_.work.take(1);
    std::visit([&](const auto& held) { show(held, quoted); }, value.held());
    --depth_;
  }

 private:
  void show(const Undefined&, bool quoted) { out_.add(quoted ? "Undefined" : ""); }
  void show(const None&, bool) { out_.add("None"); }
  void show(bool value, bool) { out_.add(value ? "True" : "False"); }
  void show(std::int64_t value, bool) { out_.add(std::to_string(value)); }
  void show(const LargeInteger& value, bool) { out_.add(*value.digits); }
  void show(double value, bool) { out_.add(number_text(value)); }
  void show(const Text& text, bool quoted) {
    if (!quoted) {
      out_.add(*text.bytes);
      return;
    }
    if (text.markup) out_.add("Markup(");
    append_quoted(out_, *text.bytes);
    if (text.markup) out_.add(')');
  }
  void show(const Sequence& sequence, bool) {
    out_.add(sequence.tuple ? '(' : '[');
    bool first = true;
    for (const auto& item : *sequence.items) {
      next(first);
      print(item, true);
    }
    if (sequence.tuple && sequence.items->size() == 1) out_.add(',');
    out_.add(sequence.tuple ? ')' : ']');
  }
  void show(const Dict& dict, bool) {
    out_.add('{');
    bool first = true;
    for (const auto& [key, value] : *dict.pairs) {
      next(first);
      entry(key, value);
    }
    out_.add('}');
  }
  void show(const Range& range, bool) {
    out_.add(range.step == 1 ? fmt::format("range({}, {})", range.start, range.stop)
                             : fmt::format("range({}, {}, {})", range.start, range.stop, range.step));
  }
  void show(const View& view, bool) {
    out_.add(view.of == View::Of::keys ? "dict_keys([" : view.of == View::Of::values ? "dict_values([" : "dict_items([");
    bool first = true;
    for (const auto& pair : *view.dict.pairs) {
      next(first);
      print(view.of == View::Of::keys ? pair.key : view.of == View::Of::values ? pair.value : runtime_.make_pair(pair), true);
    }
    out_.add("])");
  }
  void show(const Once&, bool) { no_print("what a filter selects"); }
  void show(Namespace* space, bool) {
    out_.add("<Namespace {");
    bool first = true;
    for (const auto& [name, value] : space->names.all()) {
      next(first);
      append_quoted(out_, name);
      out_.add(": ");
      print(value, true);
    }
    out_.add("}>");
  }
  void show(const Callable& callable, bool) {
    const auto& function = *callable.function;
    if (!function.is_macro) no_print(function.name);
    out_.add("<Macro ");
    append_quoted(out_, function.name);
    out_.add('>');
  }
  void show(const Loop& loop, bool) {
    out_.add(fmt::format("<LoopContext {}/{}>", loop.state->index0 + 1, loop.state->count()));
  }

  void next(bool& first) {
    if (!first) out_.add(", ");
    first = false;
  }
  void entry(const Value& key, const Value& value) {
    print(key, true);
    out_.add(": ");
    print(value, true);
  }

  Draft& out_;
  Runtime& runtime_;
  int depth_ = 0;
};

}  // namespace

std::int64_t Range::size() const {
  const auto distance =
      static_cast<std::uint64_t>(step > 0 ? stop : start) - static_cast<std::uint64_t>(step > 0 ? start : stop);
  if (step > 0 ? start >= stop : start <= stop) return 0;
  const auto by = step > 0 ? static_cast<std::uint64_t>(step) : 0 - static_cast<std::uint64_t>(step);
  return static_cast<std::int64_t>(std::min<std::uint64_t>((distance - 1) / by + 1, INT64_MAX));
}

// Cannot overflow in between: the result is between start and stop.
std::int64_t Range::at(std::int64_t index) const {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(start) +
                                   static_cast<std::uint64_t>(index) * static_cast<std::uint64_t>(step));
}

std::optional<std::int64_t> Value::integer() const {
  if (const auto* const number = as<std::int64_t>()) return *number;
  if (const auto* const flag = as<bool>()) return *flag ? 1 : 0;
  return {};
}

const Value* Names::find(std::string_view name, std::size_t& read) const { return find_in(all_, name, read); }

void Names::set(std::string_view name, Value value, Work& work, bool kept) {
  std::size_t read = name.size();
  auto* const known = find_in(all_, name, read);
  work.take(1);
  work.take_read(read);
  if (known != nullptr) {
    *known = std::move(value);
    return;
  }
  if (kept) work.take_bytes(kBytesOfAName + name.size());
  all_.emplace_back(name, std::move(value));
}

std::optional<Value> LoopState::pull() {
  while (next < items.size()) {
    auto item = items[next++];
    if (!keeps || all_kept || keeps(item)) return item;
  }
  return {};
}

bool LoopState::advance() {
  auto item = after ? std::exchange(after, {}) : pull();
  if (!item) return false;
  ++index0;
  before = std::exchange(current, std::move(*item));
  return true;
}

bool LoopState::look_ahead() {
  if (!after) after = pull();
  return after.has_value();
}

std::int64_t LoopState::count() {
  if (length >= 0) return length;
  if (has_size) return length = static_cast<std::int64_t>(items.size());
  Values rest;
  while (auto item = pull()) rest.push_back(std::move(*item));
  items = std::move(rest);
  next = 0;
  all_kept = true;  // `keeps` must not be cleared: this call may come from it
  return length = static_cast<std::int64_t>(items.size()) + index0 + 1 + (after ? 1 : 0);
}

Value undefined(std::string why) { return Value(Undefined{std::make_shared<const std::string>(std::move(why))}); }

Value text_value(std::string text, bool markup) {
  return Value(Text{std::make_shared<const std::string>(std::move(text)), markup});
}

Value list_value(Values items, bool tuple) {
  int deepest = 0;
  for (const auto& item : items) deepest = std::max(deepest, nesting_of(item));
  const auto nesting = one_more(deepest);
  return Value(Sequence{shared(std::move(items)), tuple, nesting});
}

Value dict_value(std::vector<Pair> pairs) {
  int deepest = 0;
  for (const auto& [key, value] : pairs) deepest = std::max({deepest, nesting_of(key), nesting_of(value)});
  const auto nesting = one_more(deepest);
  return Value(Dict{shared(std::move(pairs)), nesting});
}

Value large_integer(std::string digits) { return Value(LargeInteger{std::make_shared<const std::string>(std::move(digits))}); }

Values Runtime::make_room(std::size_t items) {
  work.take(items);
  work.take_bytes(items * sizeof(Value));
  Values out;
  out.reserve(items);
  return out;
}

Value Runtime::make_list(Values items, bool tuple) {
  work.take_object();
  return list_value(std::move(items), tuple);
}

Value Runtime::make_pair(const Pair& pair) {
  auto items = make_room(2);
  items.push_back(pair.key);
  items.push_back(pair.value);
  return make_list(std::move(items), true);
}

Value Runtime::make_once(Values items) {
  work.take_object();
  return Value(Once{shared(OnceState{.items = std::move(items), .next = 0})});
}

Value Runtime::make_text(std::string_view text, bool markup) {
  work.take_text(text.size());
  return text_value(std::string(text), markup);
}

Value Runtime::make_text(Draft text, bool markup) {
  work.take_object();
  return text_value(text.take(), markup);
}

Value Runtime::make_undefined(std::string why) {
  constexpr std::uint64_t kSteps = 20;  // pays for composing the reason, which is seldom read
  work.take(kSteps);
  work.take_bytes(kBytesOfAnObject + why.size());
  return undefined(std::move(why));
}

Value Runtime::make_function(std::string name, std::function<Value(Runtime&, Arguments&)> call, bool is_macro) {
  work.take_object();
  work.take_bytes(kBytesOfAnObject + name.size());  // pays also for the values that the function captures
  std::shared_ptr<const Function> made =
      shared(Function{.name = std::move(name), .is_macro = is_macro, .call = std::move(call)});
  return Value(Callable{std::move(made)});
}

Values Runtime::items_of(const Value& value) {
  if (value.is_undefined()) return {};
  if (const auto* const text = value.text()) {
    work.take_read(text->size());
    auto out = make_room(code_points(*text));
    for (std::size_t at = 0; at < text->size();) {
      const auto bytes = code_point_at(*text, at).bytes;
      out.push_back(make_text(std::string_view(*text).substr(at, bytes)));
      at += bytes;
    }
    return out;
  }
  if (const auto* const sequence = value.as<Sequence>()) {
    auto out = make_room(sequence->items->size());
    out = *sequence->items;
    return out;
  }
  if (const auto* const dict = value.as<Dict>()) {
    auto out = make_room(dict->pairs->size());
    for (const auto& pair : *dict->pairs) out.push_back(pair.key);
    return out;
  }
  if (const auto* const view = value.as<View>()) {
    auto out = make_room(view->dict.pairs->size());
    for (const auto& pair : *view->dict.pairs)
      out.push_back(view->of == View::Of::keys ? pair.key : view->of == View::Of::values ? pair.value : make_pair(pair));
    return out;
  }
  if (const auto* const range = value.as<Range>()) {
    const auto size = range->size();
    auto out = make_room(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) out.emplace_back(range->at(i));
    return out;
  }
  if (const auto* const once = value.as<Once>()) {
    auto& [items, next] = *once->state;
    auto out = make_room(items.size() - next);
    out.assign(items.begin() + static_cast<std::ptrdiff_t>(next), items.end());
    next = items.size();
    return out;
  }
  if (value.is<Loop>()) unsupported("iterating over `loop`");
  fail(fmt::format("{} cannot be iterated", type_of(value)));
}

Value Runtime::str(const Value& value) {
  if (value.text() != nullptr) return value;
  Draft out(work);
  print(value, false, out, *this);
  return make_text(std::move(out));
}

Value Runtime::repr(const Value& value) {
  Draft out(work);
  print(value, true, out, *this);
  return make_text(std::move(out));
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is<None>()) return false;
  if (const auto number = value.integer()) return *number != 0;
  if (const auto* const real = value.as<double>()) return *real != 0;
  if (const auto* const text = value.text()) return !text->empty();
  if (const auto* const sequence = value.as<Sequence>()) return !sequence->items->empty();
  if (const auto* const dict = value.as<Dict>()) return !dict->pairs->empty();
  if (const auto* const view = value.as<View>()) return !view->dict.pairs->empty();
  if (const auto* const range = value.as<Range>()) return range->size() > 0;
  if (const auto* const loop = value.as<Loop>()) return loop->state->count() > 0;
  return true;
}

std::string type_of(const Value& value) {
  struct Visitor {
    std::string operator()(const Undefined&) const { return "Undefined"; }
    std::string operator()(const None&) const { return "None"; }
    std::string operator()(bool) const { return "bool object"; }
    std::string operator()(std::int64_t) const { return "int object"; }
    std::string operator()(const LargeInteger&) const { return "int object"; }
    std::string operator()(double) const { return "float object"; }
    std::string operator()(const Text&) const { return "str object"; }
    std::string operator()(const Sequence& sequence) const { return sequence.tuple ? "tuple object" : "list object"; }
    std::string operator()(const Dict&) const { return "dict object"; }
    std::string operator()(const Range&) const { return "range object"; }
    std::string operator()(const View&) const { return "view of a dict"; }
    std::string operator()(const Once&) const { return "generator object"; }
    std::string operator()(Namespace*) const { return "namespace object"; }
    std::string operator()(const Callable&) const { return "function"; }
    std::string operator()(const Loop&) const { return "loop object"; }
  };
  return std::visit(Visitor(), value.held());
}

std::string number_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number, std::chars_format::scientific);
  const std::string_view all(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const auto e = all.find('e');
  const int exponent = std::atoi(std::string(all.substr(e + 1)).c_str());
  std::string digits;  // without the decimal point
  for (const char c : all.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  const std::string sign = std::signbit(number) ? "-" : "";
  if (exponent < -4 || exponent >= 16)
    return fmt::format("{}{}{}e{}{:02}", sign, digits.substr(0, 1), digits.size() > 1 ? "." + digits.substr(1) : "",
                       exponent < 0 ? '-' : '+', std::abs(exponent));
  if (exponent < 0) return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::optional<std::int64_t> length_of(const Value& value, Work& work) {
  const auto of = [](std::size_t size) { return static_cast<std::int64_t>(size); };
  if (value.is_undefined()) return 0;
  if (const auto* const text = value.text()) {
    work.take_read(text->size());
    return of(code_points(*text));
  }
  if (const auto* const sequence = value.as<Sequence>()) return of(sequence->items->size());
  if (const auto* const dict = value.as<Dict>()) return of(dict->pairs->size());
  if (const auto* const view = value.as<View>()) return of(view->dict.pairs->size());
  if (const auto* const range = value.as<Range>()) return range->size();
  if (const auto* const loop = value.as<Loop>()) return loop->state->count();
  return {};
}

const Value* find_key(const Dict& dict, const Value& key, Runtime& runtime) {
  runtime.work.take(dict.pairs->size() / 8);
  for (const auto& pair : *dict.pairs)
    if (equal(pair.key, key, runtime.work)) return &pair.value;
  return nullptr;
}

void print(const Value& value, bool quoted, Draft& out, Runtime& runtime) { Printer(out, runtime).print(value, quoted); }

void demand_defined(const Value& value) {
  if (const auto* const missing = value.as<Undefined>())
    fail(base::printable(missing->why ? *missing->why : "a value is undefined", 200));
}

}  // namespace terrace::lm::jinja
