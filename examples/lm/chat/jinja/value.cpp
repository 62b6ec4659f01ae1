#include <terrace/examples/lm/chat/jinja/value.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include <terrace/core/printable.h>
#include <terrace/examples/lm/chat/jinja/code_points.h>
#include <terrace/examples/lm/chat/jinja/compare.h>

namespace terrace::lm::jinja {
namespace {

int nesting_of(const Value& value) {
  if (const auto* const sequence = value.as<Sequence>()) return sequence->nesting;
  if (const auto* const dict = value.as<Dict>()) return dict->nesting;
  if (const auto* const view = value.as<View>()) return view->dict.nesting;
  if (const auto* const once = value.as<Once>()) {
    int deepest = 0;
    for (const auto& item : once->state->items) deepest = std::max(deepest, nesting_of(item));
    return deepest;
  }
  return 0;
}

int one_more(int deepest) {
  if (deepest >= kMostNesting) too_much(fmt::format("it nests lists and dicts more than {} deep", kMostNesting));
  return deepest + 1;
}

Value item_pair(const Pair& pair) { return list_value({pair.key, pair.value}, true); }

// What Python prints of it has an address, which is another one each time.
[[noreturn]] void no_print(const std::string& what) {
  unsupported(fmt::format("printing {}, which has an address in Python (`list` makes a list of what can be iterated)", what));
}

class Printer {
 public:
  Printer(std::string& out, Runtime& runtime) : out_(out), runtime_(runtime) {}

  void print(const Value& value, bool quoted) {
    if (++depth_ > 2 * kMostNesting) too_much("a namespace that is part of itself is printed");
    runtime_.work.take(1);
    std::visit([&](const auto& held) { show(held, quoted); }, value.held());
    if (out_.size() > kMostBytes) runtime_.work.take_text(out_.size());
    --depth_;
  }

 private:
  void show(const Undefined&, bool quoted) { out_ += quoted ? "Undefined" : ""; }
  void show(const None&, bool) { out_ += "None"; }
  void show(bool value, bool) { out_ += value ? "True" : "False"; }
  void show(std::int64_t value, bool) { out_ += std::to_string(value); }
  void show(double value, bool) { out_ += number_text(value); }
  void show(const Text& text, bool quoted) {
    runtime_.work.take(text.bytes->size() / kBytesOfAStep);
    if (!quoted) {
      out_ += *text.bytes;
      return;
    }
    if (text.markup) out_ += "Markup(";
    append_quoted(out_, *text.bytes);
    if (text.markup) out_ += ')';
  }
  void show(const Sequence& sequence, bool) {
    out_ += sequence.tuple ? '(' : '[';
    bool first = true;
    for (const auto& item : *sequence.items) {
      next(first);
      print(item, true);
    }
    if (sequence.tuple && sequence.items->size() == 1) out_ += ',';
    out_ += sequence.tuple ? ')' : ']';
  }
  void show(const Dict& dict, bool) {
    out_ += '{';
    bool first = true;
    for (const auto& [key, value] : *dict.pairs) {
      next(first);
      entry(key, value);
    }
    out_ += '}';
  }
  void show(const Range& range, bool) {
    out_ += range.step == 1 ? fmt::format("range({}, {})", range.start, range.stop)
                            : fmt::format("range({}, {}, {})", range.start, range.stop, range.step);
  }
  void show(const View& view, bool) {
    out_ += view.of == View::Of::keys ? "dict_keys([" : view.of == View::Of::values ? "dict_values([" : "dict_items([";
    bool first = true;
    for (const auto& pair : *view.dict.pairs) {
      next(first);
      print(view.of == View::Of::keys ? pair.key : view.of == View::Of::values ? pair.value : item_pair(pair), true);
    }
    out_ += "])";
  }
  void show(const Once&, bool) { no_print("what a filter selects"); }
  void show(Namespace* space, bool) {
    out_ += "<Namespace {";
    bool first = true;
    for (const auto& [name, value] : space->names) {
      next(first);
      entry(text_value(name), value);
    }
    out_ += "}>";
  }
  void show(const Callable& callable, bool) {
    const auto& function = *callable.function;
    if (!function.is_macro) no_print(function.name);
    out_ += "<Macro ";
    append_quoted(out_, function.name);
    out_ += '>';
  }
  void show(const Loop& loop, bool) { out_ += fmt::format("<LoopContext {}/{}>", loop.state->index0 + 1, loop.state->count()); }

  void next(bool& first) {
    if (!first) out_ += ", ";
    first = false;
  }
  void entry(const Value& key, const Value& value) {
    print(key, true);
    out_ += ": ";
    print(value, true);
  }

  std::string& out_;
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

std::optional<std::int64_t> Value::integer() const {
  if (const auto* const number = as<std::int64_t>()) return *number;
  if (const auto* const flag = as<bool>()) return *flag ? 1 : 0;
  return {};
}

const Value* Namespace::find(std::string_view name) const {
  const auto found = std::ranges::find(names, name, [](const auto& entry) -> std::string_view { return entry.first; });
  return found == names.end() ? nullptr : &found->second;
}

void Namespace::set(std::string_view name, Value value) {
  for (auto& entry : names)
    if (entry.first == name) {
      entry.second = std::move(value);
      return;
    }
  names.emplace_back(name, std::move(value));
}

std::optional<Value> LoopState::pull() {
  while (next < items.size()) {
    auto item = items[next++];
    if (!keeps || keeps(item)) return item;
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
  keeps = {};
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
  return Value(Sequence{std::make_shared<const Values>(std::move(items)), tuple, nesting});
}

Value dict_value(std::vector<Pair> pairs) {
  int deepest = 0;
  for (const auto& [key, value] : pairs) deepest = std::max({deepest, nesting_of(key), nesting_of(value)});
  const auto nesting = one_more(deepest);
  return Value(Dict{std::make_shared<const std::vector<Pair>>(std::move(pairs)), nesting});
}

Values Runtime::items_of(const Value& value) {
  Values out;
  const auto take = [&](std::size_t count) {
    work.take(count);
    out.reserve(count);
  };
  if (value.is_undefined()) return out;
  if (const auto* const text = value.text()) {
    take(text->size());
    for (const auto code : decoded(*text)) out.push_back(text_value(encoded({&code, 1})));
  } else if (const auto* const sequence = value.as<Sequence>()) {
    take(sequence->items->size());
    out = *sequence->items;
  } else if (const auto* const dict = value.as<Dict>()) {
    take(dict->pairs->size());
    for (const auto& pair : *dict->pairs) out.push_back(pair.key);
  } else if (const auto* const view = value.as<View>()) {
    take(2 * view->dict.pairs->size());
    for (const auto& pair : *view->dict.pairs)
      out.push_back(view->of == View::Of::keys ? pair.key : view->of == View::Of::values ? pair.value : item_pair(pair));
  } else if (const auto* const range = value.as<Range>()) {
    const auto size = range->size();
    take(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) out.emplace_back(range->start + i * range->step);
  } else if (const auto* const once = value.as<Once>()) {
    auto& [items, next] = *once->state;
    take(items.size() - next);
    out.assign(items.begin() + static_cast<std::ptrdiff_t>(next), items.end());
    next = items.size();
  } else if (value.is<Loop>()) {
    unsupported("iterating over `loop`");
  } else {
    fail(fmt::format("{} cannot be iterated", type_of(value)));
  }
  return out;
}

std::string Runtime::str(const Value& value) {
  if (const auto* const text = value.text()) {
    work.take_text(text->size());
    return *text;
  }
  std::string out;
  print(value, false, out, *this);
  work.take_text(out.size());
  return out;
}

std::string Runtime::repr(const Value& value) {
  std::string out;
  print(value, true, out, *this);
  work.take_text(out.size());
  return out;
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is<None>()) return false;
  if (const auto number = value.integer()) return *number != 0;
  if (const auto* const real = value.as<double>()) return *real != 0;
  const auto length = length_of(value);
  return !length || *length > 0;
}

std::string type_of(const Value& value) {
  struct Names {
    std::string operator()(const Undefined&) const { return "Undefined"; }
    std::string operator()(const None&) const { return "None"; }
    std::string operator()(bool) const { return "bool object"; }
    std::string operator()(std::int64_t) const { return "int object"; }
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
  return std::visit(Names(), value.held());
}

std::string number_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number, std::chars_format::scientific);
  const std::string_view all(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const auto e = all.find('e');
  const int exponent = std::atoi(std::string(all.substr(e + 1)).c_str());
  std::string digits;  // without the point
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

std::optional<std::int64_t> length_of(const Value& value) {
  const auto of = [](std::size_t size) { return static_cast<std::int64_t>(size); };
  if (value.is_undefined()) return 0;
  if (const auto* const text = value.text()) return of(code_points(*text));
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

void print(const Value& value, bool quoted, std::string& out, Runtime& runtime) { Printer(out, runtime).print(value, quoted); }

void demand_defined(const Value& value) {
  if (const auto* const missing = value.as<Undefined>())
    fail(printable(missing->why ? *missing->why : "a value is undefined", 200));
}

}  // namespace terrace::lm::jinja
