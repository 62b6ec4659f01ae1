#include <terrace/examples/lm/chat/jinja/filters.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/examples/lm/chat/jinja/arguments.h>
#include <terrace/examples/lm/chat/jinja/code_points.h>
#include <terrace/examples/lm/chat/jinja/compare.h>
#include <terrace/examples/lm/chat/jinja/json.h>
#include <terrace/examples/lm/chat/jinja/methods.h>
#include <terrace/examples/lm/chat/jinja/operators.h>

namespace terrace::lm::jinja {
namespace {

using Filter = Value (*)(const Value&, Runtime&, Arguments&);

bool is_markup(const Value& value) { return value.text() != nullptr && value.as<Text>()->markup; }

// --- texts

template <Draft (*kTo)(std::string_view, Work&)>
Value text_in_case(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("upper", given, {});
  return runtime.make_text(kTo(*runtime.str(value).text(), runtime.work), is_markup(value));
}

Value trim(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("trim", given, {"chars"});
  const auto of = runtime.str(value);
  const auto& text = *of.text();
  if (bound.given(0)) return runtime.make_text(stripped_of(text, true, true, bound.text(0), runtime.work), is_markup(value));
  const auto rest = stripped(text, true, true);
  runtime.work.take_read(4 * (text.size() - rest.size()));
  return runtime.make_text(rest, is_markup(value));
}

Value replace_filter(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("replace", given, {"old", "new", "count"}, 2);
  const auto most = bound.given(2) ? bound.number(2, -1) : -1;
  const auto of = runtime.str(value), old = runtime.str(bound[0]), by = runtime.str(bound[1]);
  return runtime.make_text(replaced(*of.text(), *old.text(), *by.text(), most, runtime.work));
}

Value string_filter(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("string", given, {});
  return runtime.str(value);
}

Value safe(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("safe", given, {});
  return Value(Text{.bytes = runtime.str(value).as<Text>()->bytes, .markup = true});
}

template <bool kAgain>
Value escape(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("escape", given, {});
  if (is_markup(value) && !kAgain) return value;
  Draft out(runtime.work);
  append_escaped(out, *runtime.str(value).text());
  return runtime.make_text(std::move(out), true);
}

// The argument is a text, or a number of spaces.
std::string indentation(const Bound& bound, std::size_t i, Runtime& runtime) {
  if (const auto* const text = bound[i].text()) {
    runtime.work.take_text(text->size());
    return *text;
  }
  const auto spaces = std::clamp<std::int64_t>(bound.number(i, 0), 0, std::int64_t{kMostTextBytes} + 1);
  runtime.work.take_text(static_cast<std::size_t>(spaces));
  return std::string(static_cast<std::size_t>(spaces), ' ');
}

Value indent(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("indent", given, {"width", "first", "blank"});
  demand_defined(value);
  if (value.text() == nullptr) fail(fmt::format("'indent' does not take {}", type_of(value)));
  const auto by = bound.has(0) ? indentation(bound, 0, runtime) : "    ";
  Draft with_newline(runtime.work), out(runtime.work);
  with_newline.add(*value.text());
  with_newline.add('\n');
  const auto text = with_newline.take();
  if (bound.flag(1)) out.add(by);
  bool first = true;
  for (const auto line : lines(text, false, runtime.work)) {
    if (!first) out.add('\n');
    if (!first && (bound.flag(2) || !line.empty())) out.add(by);
    out.add(line);
    first = false;
  }
  return runtime.make_text(std::move(out), is_markup(value));
}

Value tojson(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("tojson", given, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonForm form{.indent = {}, .only_ascii = bound.flag(0), .sorts_keys = bound.flag(3)};
  if (bound.given(1)) {
    form.indent = indentation(bound, 1, runtime);
    form.between = ",";
  }
  if (bound.given(2)) {
    const auto* const separators = bound[2].as<Sequence>();
    if (separators == nullptr || separators->items->size() != 2 || (*separators->items)[0].text() == nullptr ||
        (*separators->items)[1].text() == nullptr)
      fail("the separators of 'tojson' are no pair of texts");
    for (const auto& text : *separators->items) runtime.work.take_text(text.text()->size());
    form.between = *(*separators->items)[0].text();
    form.after_key = *(*separators->items)[1].text();
  }
  return runtime.make_text(to_json(value, form, runtime));
}

// --- numbers

Value absolute(const Value& value, Runtime&, Arguments& given) {
  const Bound bound("abs", given, {});
  demand_defined(value);
  demand_small(value);
  if (const auto number = value.integer()) return *number < 0 ? negative(Value(*number)) : Value(*number);
  if (const auto* const real = value.as<double>()) return Value(std::fabs(*real));
  fail(fmt::format("'abs' does not take {}", type_of(value)));
}

// Removes underscores between digits, which Python allows in numbers; returns nothing if an underscore is elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](std::size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
    if (text[i] != '_')
      out += text[i];
    else if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1))
      return {};
  }
  return out;
}

std::optional<std::int64_t> integer_in(std::string_view text) {
  auto digits = without_underscores(stripped(text, true, true));
  if (!digits || digits->empty()) return {};
  std::string_view rest = *digits;
  if (rest.front() == '+') rest.remove_prefix(1);
  if (rest.starts_with("-") && rest.size() != digits->size()) return {};  // +-1
  std::int64_t out = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), out);
  if (end != rest.data() + rest.size()) return {};
  if (error == std::errc::result_out_of_range) unsupported("an integer of more than 64 bits");
  if (error != std::errc()) return {};
  return out;
}

std::optional<double> real_in(std::string_view text) {
  const auto digits = without_underscores(stripped(text, true, true));
  if (!digits || digits->empty()) return {};
  if (digits->find_first_not_of("0123456789+-.eEinfatyINFATY") != std::string::npos) return {};  // excludes hexadecimal numbers
  char* end = nullptr;
  const double out = std::strtod(digits->c_str(), &end);
  if (end != digits->c_str() + digits->size()) return {};
  return out;
}

std::optional<std::int64_t> truncated(double real) {
  if (!std::isfinite(real)) return {};
  if (std::fabs(real) >= 9.2e18) unsupported("an integer of more than 64 bits");
  return static_cast<std::int64_t>(real);
}

Value int_filter(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("int", given, {"default", "base"});
  if (bound.number(1, 10) != 10) unsupported("another base than 10 in 'int'");
  demand_defined(value);
  if (value.is<LargeInteger>()) return value;
  std::optional<std::int64_t> out;
  if (const auto* const text = value.text()) {
    runtime.work.take_read(8 * text->size());
    out = integer_in(*text);
    if (!out)
      if (const auto real = real_in(*text)) out = truncated(*real);
  } else if (const auto* const real = value.as<double>()) {
    if (std::isinf(*real)) fail("infinity is no integer");
    out = truncated(*real);
  } else {
    out = value.integer();
  }
  if (out) return Value(*out);
  return bound.has(0) ? bound[0] : Value(std::int64_t{0});
}

Value float_filter(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("float", given, {"default"});
  demand_defined(value);
  demand_small(value);
  std::optional<double> out;
  if (const auto* const text = value.text()) {
    runtime.work.take_read(8 * text->size());
    out = real_in(*text);
  }
  if (const auto* const real = value.as<double>()) out = *real;
  if (const auto number = value.integer()) out = static_cast<double>(*number);
  if (out) return Value(*out);
  return bound.has(0) ? bound[0] : Value(0.0);
}

Value round_filter(const Value& value, Runtime&, Arguments& given) {
  const Bound bound("round", given, {"precision", "method"});
  const auto precision = bound.number(0, 0);
  const auto method = bound.has(1) ? bound.text(1) : std::string("common");
  if (method != "common" && method != "ceil" && method != "floor") fail("'round' has the methods common, ceil and floor");
  if (precision < 0 || precision > 300) unsupported("a precision of 'round' that is not between 0 and 300");
  demand_defined(value);
  demand_small(value);
  const auto number = value.integer();
  const auto* const real = value.as<double>();
  if (!number && real == nullptr) fail(fmt::format("'round' does not take {}", type_of(value)));
  if (method == "common") {
    if (number) return Value(*number);
    if (!std::isfinite(*real)) return value;
    std::array<char, 700> digits{};
    std::snprintf(digits.data(), digits.size(), "%.*f", static_cast<int>(precision), *real);  // exact, half to even
    return Value(std::strtod(digits.data(), nullptr));
  }
  if (real != nullptr && !std::isfinite(*real)) fail("infinity cannot be rounded");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = (number ? static_cast<double>(*number) : *real) * scale;
  const double whole = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  return Value((whole == 0 ? 0.0 : whole) / scale);
}

// --- lists

Value length(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("length", given, {});
  if (const auto count = length_of(value, runtime.work)) return Value(*count);
  fail(fmt::format("{} has no length{}", type_of(value),
                   value.is<Once>() ? ": make it a list first, with the filter `list`" : ""));
}

Value list_filter(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("list", given, {});
  return runtime.make_list(runtime.items_of(value));
}

Value first(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("first", given, {});
  const auto none = [&] { return runtime.make_undefined("there is no first item, the sequence is empty"); };
  if (const auto* const state = value.as<Once>()) {
    auto& [items, next] = *state->state;
    return next < items.size() ? items[next++] : none();
  }
  const auto items = runtime.items_of(value);
  return items.empty() ? none() : items.front();
}

Value last(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("last", given, {});
  if (value.is<Once>()) fail("'last' does not take a generator object: make it a list first, with the filter `list`");
  const auto items = runtime.items_of(value);
  return items.empty() ? runtime.make_undefined("there is no last item, the sequence is empty") : items.back();
}

Value reverse(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("reverse", given, {});
  if (value.text() != nullptr) {
    const auto count = *length_of(value, runtime.work);
    return runtime.make_text(picked(*value.text(), count - 1, -1, count, runtime.work), is_markup(value));
  }
  auto items = runtime.items_of(value);
  std::ranges::reverse(items);
  return value.is<Once>() ? runtime.make_list(std::move(items)) : runtime.make_once(std::move(items));
}

Value default_filter(const Value& value, Runtime&, Arguments& given) {
  const Bound bound("default", given, {"default_value", "boolean"});
  if (!value.is_undefined() && (!bound.flag(1) || is_true(value))) return value;
  return bound.has(0) ? bound[0] : text_value({});
}

Value items_filter(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("items", given, {});
  if (value.is_undefined()) return runtime.make_once({});
  if (!value.is<Dict>()) fail(fmt::format("'items' takes a dict, and not {}", type_of(value)));
  return runtime.make_once(runtime.items_of(Value(View{*value.as<Dict>(), View::Of::items})));
}

// The value at a path such as `function.name` or `0`; each part of the path is an attribute or an index.
Value at_path(Value value, const Value& path, Runtime& runtime, const Value* absent = nullptr) {
  const auto step = [&](const Value& key) {
    value = item_of(value, key, runtime);
    if (absent != nullptr && !absent->is<None>() && value.is_undefined()) value = *absent;
  };
  const auto* const text = path.text();
  if (path.is<None>()) return value;
  if (text == nullptr) {
    step(path);
    return value;
  }
  for (const auto part : split(*text, ".", -1, runtime.work)) {
    std::int64_t index = 0;
    const bool is_index = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos &&
                          std::from_chars(part.data(), part.data() + part.size(), index).ec == std::errc();
    step(is_index ? Value(index) : runtime.make_text(part));
  }
  return value;
}

Value without_case(const Value& value, bool case_sensitive, Runtime& runtime) {
  if (value.text() == nullptr || case_sensitive) return value;
  return runtime.make_text(lower(*value.text(), runtime.work));
}

Value join_filter(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("join", given, {"d", "attribute"});
  const auto between = bound.has(0) ? runtime.str(bound[0]) : text_value({});
  Draft out(runtime.work);
  bool is_first = true;
  for (const auto& item : runtime.items_of(value)) {
    const auto text = runtime.str(bound.given(1) ? at_path(item, bound[1], runtime) : item);
    if (!is_first) out.add(*between.text());
    out.add(*text.text());
    is_first = false;
  }
  return runtime.make_text(std::move(out));
}

Value map_filter(const Value& value, Runtime& runtime, Arguments& given) {
  const Runtime::Deeper deeper(runtime);  // `map` may apply itself
  if (!is_true(value)) return runtime.make_once({});
  const auto items = runtime.items_of(value);
  auto out = runtime.make_room(items.size());
  if (given.positional.empty()) {
    const Bound bound("map", given, {"attribute", "default"}, 1);
    for (const auto& item : items) out.push_back(at_path(item, bound[0], runtime, bound.has(1) ? &bound[1] : nullptr));
    return runtime.make_once(std::move(out));
  }
  const auto name = runtime.str(given.positional.front());
  for (const auto& item : items) {
    runtime.work.take(given.positional.size() + given.named.size());
    Arguments rest{.positional = {given.positional.begin() + 1, given.positional.end()}, .named = given.named};
    out.push_back(apply_filter(*name.text(), item, rest, runtime));
  }
  return runtime.make_once(std::move(out));
}

// `kKeep`: keeps the items that pass the test, otherwise those that fail; `kOfAttribute`: tests an attribute of each item.
template <bool kKeep, bool kOfAttribute>
Value select(const Value& value, Runtime& runtime, Arguments& given) {
  constexpr std::size_t kTest = kOfAttribute ? 1 : 0;
  if (!is_true(value)) return runtime.make_once({});
  if (given.positional.size() < kTest) fail("'selectattr' and 'rejectattr' need the name of an attribute");
  const bool has_test = given.positional.size() > kTest;
  const auto name = has_test ? runtime.str(given.positional[kTest]) : text_value({});
  const auto items = runtime.items_of(value);
  auto out = runtime.make_room(items.size());
  for (const auto& item : items) {
    runtime.work.take(given.positional.size() + given.named.size());
    const auto tested = kOfAttribute ? at_path(item, given.positional[0], runtime) : item;
    Arguments rest{.positional = {}, .named = given.named};
    if (has_test) rest.positional.assign(given.positional.begin() + kTest + 1, given.positional.end());
    if ((has_test ? apply_test(*name.text(), tested, rest, runtime) : is_true(tested)) == kKeep) out.push_back(item);
  }
  return runtime.make_once(std::move(out));
}

struct Keyed {
  Value key, item;
};
std::vector<Keyed> room_for_keys(std::size_t items, Runtime& runtime) {
  runtime.work.take(items);
  runtime.work.take_bytes(2 * items * sizeof(Keyed));  // sorting makes a copy
  std::vector<Keyed> out;
  out.reserve(items);
  return out;
}
// Sorts by key. The sort is stable, also if `backward`.
Values sorted(std::vector<Keyed> all, bool backward, Runtime& runtime) {
  if (backward) std::ranges::reverse(all);
  std::ranges::stable_sort(all, [&](const Keyed& a, const Keyed& b) { return less(a.key, b.key, runtime.work); });
  if (backward) std::ranges::reverse(all);
  auto out = runtime.make_room(all.size());
  for (auto& [key, item] : all) out.push_back(std::move(item));
  return out;
}

Value sort(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("sort", given, {"reverse", "case_sensitive", "attribute"});
  const auto items = runtime.items_of(value);
  auto all = room_for_keys(items.size(), runtime);
  const auto key_of = [&](const Value& of) { return without_case(of, bound.flag(1), runtime); };
  for (const auto& item : items) {
    Values keys;
    if (!bound.given(2)) {
      keys = runtime.make_room(1);
      keys.push_back(key_of(item));
    } else if (bound[2].text() == nullptr) {
      keys = runtime.make_room(1);
      keys.push_back(key_of(at_path(item, bound[2], runtime)));
    } else {
      const auto paths = split(bound.text(2), ",", -1, runtime.work);
      keys = runtime.make_room(paths.size());
      for (const auto path : paths) keys.push_back(key_of(at_path(item, runtime.make_text(path), runtime)));
    }
    all.push_back({runtime.make_list(std::move(keys)), item});
  }
  return runtime.make_list(sorted(std::move(all), bound.flag(0), runtime));
}

Value dictsort(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("dictsort", given, {"case_sensitive", "by", "reverse"});
  if (!value.is<Dict>()) fail(fmt::format("'dictsort' takes a dict, and not {}", type_of(value)));
  const auto by = bound.has(1) ? bound.text(1) : std::string("key");
  if (by != "key" && by != "value") fail("'dictsort' sorts by \"key\" or by \"value\"");
  const auto& pairs = *value.as<Dict>()->pairs;
  auto all = room_for_keys(pairs.size(), runtime);
  for (const auto& pair : pairs)
    all.push_back({without_case(by == "key" ? pair.key : pair.value, bound.flag(0), runtime), runtime.make_pair(pair)});
  return runtime.make_list(sorted(std::move(all), bound.flag(2), runtime));
}

Value unique(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("unique", given, {"case_sensitive", "attribute"});
  const auto items = runtime.items_of(value);
  auto out = runtime.make_room(items.size()), seen = runtime.make_room(items.size());
  for (const auto& item : items) {
    auto key = without_case(bound.given(1) ? at_path(item, bound[1], runtime) : item, bound.flag(0), runtime);
    if (!is_hashable(key, runtime.work)) fail(fmt::format("'unique' does not take {}", type_of(key)));
    if (std::ranges::any_of(seen, [&](const Value& one) { return equal(one, key, runtime.work); })) continue;
    seen.push_back(std::move(key));
    out.push_back(item);
  }
  return runtime.make_once(std::move(out));
}

template <bool kGreatest>
Value extreme(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("min", given, {"case_sensitive", "attribute"});
  std::optional<Keyed> best;
  for (const auto& item : runtime.items_of(value)) {
    Keyed one{without_case(bound.given(1) ? at_path(item, bound[1], runtime) : item, bound.flag(0), runtime), item};
    if (!best || (kGreatest ? less(best->key, one.key, runtime.work) : less(one.key, best->key, runtime.work)))
      best = std::move(one);
  }
  return best ? best->item : runtime.make_undefined("there is no item, the sequence is empty");
}

Value sum(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("sum", given, {"attribute", "start"});
  auto out = bound.has(1) ? bound[1] : Value(std::int64_t{0});
  if (out.text() != nullptr) fail("'sum' does not join texts; `join` does");
  for (const auto& item : runtime.items_of(value))
    out = arithmetic(Expression::Kind::add, out, bound.given(0) ? at_path(item, bound[0], runtime) : item, runtime);
  return out;
}

const std::map<std::string_view, Filter>& filters() {
  static const std::map<std::string_view, Filter> all{
      {"abs", absolute},
      {"capitalize", text_in_case<capitalized>},
      {"count", length},
      {"d", default_filter},
      {"default", default_filter},
      {"dictsort", dictsort},
      {"e", escape<false>},
      {"escape", escape<false>},
      {"first", first},
      {"float", float_filter},
      {"forceescape", escape<true>},
      {"indent", indent},
      {"int", int_filter},
      {"items", items_filter},
      {"join", join_filter},
      {"last", last},
      {"length", length},
      {"list", list_filter},
      {"lower", text_in_case<lower>},
      {"map", map_filter},
      {"max", extreme<true>},
      {"min", extreme<false>},
      {"reject", select<false, false>},
      {"rejectattr", select<false, true>},
      {"replace", replace_filter},
      {"reverse", reverse},
      {"round", round_filter},
      {"safe", safe},
      {"select", select<true, false>},
      {"selectattr", select<true, true>},
      {"sort", sort},
      {"string", string_filter},
      {"sum", sum},
      {"title", text_in_case<words_titled>},
      {"tojson", tojson},
      {"trim", trim},
      {"unique", unique},
      {"upper", text_in_case<upper>},
  };
  return all;
}

}  // namespace

Value apply_filter(std::string_view name, const Value& to, Arguments& given, Runtime& runtime) {
  runtime.work.take(2);
  const auto found = filters().find(name);
  if (found == filters().end()) unsupported(fmt::format("the filter '{}'", base::printable(name)));
  return found->second(to, runtime, given);
}

}  // namespace terrace::lm::jinja
