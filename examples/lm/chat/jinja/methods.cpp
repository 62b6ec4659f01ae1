#include <terrace/examples/lm/chat/jinja/methods.h>

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include <terrace/examples/lm/chat/jinja/arguments.h>
#include <terrace/examples/lm/chat/jinja/code_points.h>
#include <terrace/examples/lm/chat/jinja/compare.h>
#include <terrace/examples/lm/chat/jinja/search.h>

namespace terrace::lm::jinja {
namespace {

using Method = Value (*)(const Value& self, Runtime&, Arguments&);

const std::string& self_text(const Value& self) { return *self.text(); }

template <bool kLeft, bool kRight>
Value strip(const Value& self, Runtime& runtime, Arguments& given) {
  const Bound bound("strip", given, {"chars"});
  const auto& text = self_text(self);
  if (bound.given(0)) return runtime.make_text(stripped_of(text, kLeft, kRight, bound.text(0), runtime.work));
  const auto rest = stripped(text, kLeft, kRight);
  runtime.work.take_read(4 * (text.size() - rest.size()));
  return runtime.make_text(rest);
}

Value texts(const std::vector<std::string_view>& parts, Runtime& runtime) {
  auto out = runtime.make_room(parts.size());
  for (const auto part : parts) out.push_back(runtime.make_text(part));
  return runtime.make_list(std::move(out));
}

template <bool kFromEnd>
Value split_text(const Value& self, Runtime& runtime, Arguments& given) {
  const Bound bound("split", given, {"sep", "maxsplit"});
  std::optional<std::string_view> separator;
  if (bound.given(0)) separator = bound.text(0);
  if (separator && separator->empty()) fail("the separator of 'split' is empty");
  const auto most = bound.number(1, -1);
  return texts((kFromEnd ? split_from_end : split)(self_text(self), separator, most, runtime.work), runtime);
}

Value split_lines(const Value& self, Runtime& runtime, Arguments& given) {
  const Bound bound("splitlines", given, {"keepends"});
  return texts(lines(self_text(self), bound.flag(0), runtime.work), runtime);
}

template <bool kEnd>
Value has_affix(const Value& self, Runtime& runtime, Arguments& given) {
  const Bound bound(kEnd ? "endswith" : "startswith", given, {"prefix"}, 1);
  const auto has = [&](const std::string& affix) {
    runtime.work.take(1);
    if (affix.size() <= self_text(self).size()) runtime.work.take_read(affix.size());
    return kEnd ? self_text(self).ends_with(affix) : self_text(self).starts_with(affix);
  };
  const auto* const several = bound[0].as<Sequence>();
  if (several == nullptr || !several->tuple) return Value(has(bound.text(0)));
  return Value(std::ranges::any_of(*several->items, [&](const Value& one) {
    if (one.text() == nullptr)
      fail(fmt::format("'{}' does not take a tuple with {}", kEnd ? "endswith" : "startswith", type_of(one)));
    return has(*one.text());
  }));
}

template <bool kEnd>
Value without_affix(const Value& self, Runtime& runtime, Arguments& given) {
  const Bound bound(kEnd ? "removesuffix" : "removeprefix", given, {"affix"}, 1);
  std::string_view text = self_text(self);
  const std::string_view affix = bound.text(0);
  runtime.work.take_read(affix.size());
  if (kEnd && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!kEnd && text.starts_with(affix)) text.remove_prefix(affix.size());
  return runtime.make_text(text);
}

template <Draft (*kTo)(std::string_view, Work&)>
Value in_case(const Value& self, Runtime& runtime, Arguments& given) {
  const Bound bound("upper", given, {});
  return runtime.make_text(kTo(self_text(self), runtime.work));
}

Value replace(const Value& self, Runtime& runtime, Arguments& given) {
  const Bound bound("replace", given, {"old", "new", "count"}, 2);
  return runtime.make_text(replaced(self_text(self), bound.text(0), bound.text(1), bound.number(2, -1), runtime.work));
}

Value join(const Value& self, Runtime& runtime, Arguments& given) {
  const Bound bound("join", given, {"iterable"}, 1);
  Draft out(runtime.work);
  bool first = true;
  for (const auto& item : runtime.items_of(bound[0])) {
    if (item.text() == nullptr) fail(fmt::format("'join' joins texts, and not {}", type_of(item)));
    if (!first) out.add(self_text(self));
    first = false;
    out.add(*item.text());
  }
  return runtime.make_text(std::move(out));
}

template <bool kFromEnd, bool kMust>
Value find(const Value& self, Runtime& runtime, Arguments& given) {
  const Bound bound("find", given, {"sub"}, 1);
  const auto& text = self_text(self);
  const auto at = kFromEnd ? find_last(text, bound.text(0), runtime.work) : find_first(text, bound.text(0), 0, runtime.work);
  if (kMust && at == std::string::npos) fail("'index' does not find the text");
  if (at == std::string::npos) return Value(std::int64_t{-1});
  runtime.work.take_read(at);
  return Value(static_cast<std::int64_t>(code_points(std::string_view(text).substr(0, at))));
}

Value count_text(const Value& self, Runtime& runtime, Arguments& given) {
  const Bound bound("count", given, {"sub"}, 1);
  const auto &text = self_text(self), &sub = bound.text(0);
  if (sub.empty()) return Value(*length_of(self, runtime.work) + 1);
  std::int64_t count = 0;
  for (auto at = find_first(text, sub, 0, runtime.work); at != std::string::npos;
       at = find_first(text, sub, at + sub.size(), runtime.work)) {
    runtime.work.take(1);
    ++count;
  }
  return Value(count);
}

Value count_items(const Value& self, Runtime& runtime, Arguments& given) {
  const Bound bound("count", given, {"value"}, 1);
  const auto& items = *self.as<Sequence>()->items;
  return Value(static_cast<std::int64_t>(
      std::ranges::count_if(items, [&](const Value& item) { return equal(item, bound[0], runtime.work); })));
}

Value index_item(const Value& self, Runtime& runtime, Arguments& given) {
  const Bound bound("index", given, {"value"}, 1);
  const auto& items = *self.as<Sequence>()->items;
  const auto found = std::ranges::find_if(items, [&](const Value& item) { return equal(item, bound[0], runtime.work); });
  if (found == items.end()) fail("'index' does not find the value");
  return Value(static_cast<std::int64_t>(found - items.begin()));
}

Value copied(const Value& self, Runtime&, Arguments& given) {
  const Bound bound("copy", given, {});
  return self;
}

Value get(const Value& self, Runtime& runtime, Arguments& given) {
  const Bound bound("get", given, {"key", "default"}, 1);
  if (!is_hashable(bound[0], runtime.work)) fail(fmt::format("{} cannot be a key", type_of(bound[0])));
  const auto* const found = find_key(*self.as<Dict>(), bound[0], runtime);
  if (found != nullptr) return *found;
  return bound.has(1) ? bound[1] : Value(None());
}

template <View::Of kOf>
Value view(const Value& self, Runtime&, Arguments& given) {
  const Bound bound("items", given, {});
  return Value(View{*self.as<Dict>(), kOf});
}

Value cycle(const Value& self, Runtime&, Arguments& given) {
  if (given.positional.empty()) fail("'cycle' needs values");
  return given.positional[static_cast<std::size_t>(self.as<Loop>()->state->index0) % given.positional.size()];
}

Value changed(const Value& self, Runtime& runtime, Arguments& given) {
  auto& last = self.as<Loop>()->state->last_changed;
  const bool same =
      last != nullptr && last->size() == given.positional.size() &&
      std::ranges::equal(*last, given.positional, [&](const Value& a, const Value& b) { return equal(a, b, runtime.work); });
  if (last == nullptr) {
    runtime.work.take_object();
    last = &runtime.last_changed.emplace_back();
  }
  if (!same) {
    runtime.work.take_bytes(given.positional.size() * sizeof(Value));
    *last = given.positional;
  }
  return Value(!same);
}

const std::map<std::string_view, Method>& methods_of(const Value& of) {
  static const std::map<std::string_view, Method> none, of_texts{
                                                            {"strip", strip<true, true>},
                                                            {"lstrip", strip<true, false>},
                                                            {"rstrip", strip<false, true>},
                                                            {"split", split_text<false>},
                                                            {"rsplit", split_text<true>},
                                                            {"splitlines", split_lines},
                                                            {"startswith", has_affix<false>},
                                                            {"endswith", has_affix<true>},
                                                            {"removeprefix", without_affix<false>},
                                                            {"removesuffix", without_affix<true>},
                                                            {"upper", in_case<upper>},
                                                            {"lower", in_case<lower>},
                                                            {"title", in_case<titled>},
                                                            {"capitalize", in_case<capitalized>},
                                                            {"replace", replace},
                                                            {"join", join},
                                                            {"find", find<false, false>},
                                                            {"rfind", find<true, false>},
                                                            {"index", find<false, true>},
                                                            {"rindex", find<true, true>},
                                                            {"count", count_text},
                                                        };
  static const std::map<std::string_view, Method> of_lists{{"count", count_items}, {"index", index_item}, {"copy", copied}};
  static const std::map<std::string_view, Method> of_dicts{{"get", get},
                                                           {"items", view<View::Of::items>},
                                                           {"keys", view<View::Of::keys>},
                                                           {"values", view<View::Of::values>},
                                                           {"copy", copied}};
  static const std::map<std::string_view, Method> of_loops{{"cycle", cycle}, {"changed", changed}};
  if (of.text() != nullptr) return of_texts;
  if (of.is<Sequence>()) return of_lists;
  if (of.is<Dict>()) return of_dicts;
  if (of.is<Loop>()) return of_loops;
  return none;
}

bool is_listed(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Python's methods that terrace does not have.
bool is_other_method(const Value& of, std::string_view name) {
  if (of.text() != nullptr)
    return is_listed(name, {"casefold",    "center",     "encode",    "expandtabs", "format",       "format_map", "isalnum",
                            "isalpha",     "isascii",    "isdecimal", "isdigit",    "isidentifier", "islower",    "isnumeric",
                            "isprintable", "isspace",    "istitle",   "isupper",    "ljust",        "maketrans",  "partition",
                            "rjust",       "rpartition", "swapcase",  "translate",  "zfill"});
  return of.is<Dict>() && name == "fromkeys";
}

bool changes(const Value& of, std::string_view name) {
  if (const auto* const sequence = of.as<Sequence>())
    return !sequence->tuple && is_listed(name, {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"});
  return of.is<Dict>() && is_listed(name, {"clear", "pop", "popitem", "setdefault", "update"});
}

}  // namespace

Draft replaced(std::string_view text, std::string_view old, std::string_view by, std::int64_t most, Work& work) {
  Draft out(work);
  std::size_t done = 0;
  for (std::size_t at = 0; most != 0; most -= most > 0 ? 1 : 0) {
    at = find_first(text, old, at, work);
    if (at == std::string_view::npos) break;
    work.take(1);
    out.add(text.substr(done, at - done));
    out.add(by);
    done = at + old.size();
    if (!old.empty()) {
      at = done;
    } else if (at == text.size()) {  // an empty text is found before each character and at the end
      break;
    } else {
      at += code_point_at(text, at).bytes;
    }
  }
  out.add(text.substr(done));
  return out;
}

bool is_loop_attribute(std::string_view name) {
  return is_listed(
      name, {"index", "index0", "revindex", "revindex0", "first", "last", "length", "previtem", "nextitem", "depth", "depth0"});
}

std::optional<Value> method_of(const Value& of, std::string_view name, Runtime& runtime) {
  const auto& methods = methods_of(of);
  if (const auto found = methods.find(name);
      found != methods.end() && !(name == "copy" && of.is<Sequence>() && of.as<Sequence>()->tuple)) {
    if (of.text() != nullptr && of.as<Text>()->markup)
      return runtime.make_function(std::string(name), [name = std::string(name)](Runtime&, Arguments&) -> Value {
        unsupported(fmt::format("the method '{}' of a text that is marked safe", name));
      });
    return runtime.make_function(
        fmt::format("the method '{}'", name),
        [method = found->second, of](Runtime& with, Arguments& given) { return method(of, with, given); });
  }
  if (changes(of, name))
    return runtime.make_undefined(fmt::format("the method '{}' would change {}, which templates may not", name, type_of(of)));
  if (!is_other_method(of, name)) return {};
  return runtime.make_function(std::string(name), [name = std::string(name)](Runtime&, Arguments&) -> Value {
    unsupported(fmt::format("the method '{}'", name));
  });
}

}  // namespace terrace::lm::jinja
