#include <terrace/examples/lm/chat/jinja/compare.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/examples/lm/chat/jinja/search.h>

namespace terrace::lm::jinja {
namespace {

// Its 64 bits of mantissa hold every 64-bit integer and every double.
using Wide = long double;
static_assert(std::numeric_limits<Wide>::digits >= 64);

std::optional<Wide> number_of(const Value& value) {
  if (const auto whole = value.integer()) return static_cast<Wide>(*whole);
  if (const auto* const real = value.as<double>()) return static_cast<Wide>(*real);
  return {};
}

bool same_items(const Values& a, const Values& b, Work& work) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!equal(a[i], b[i], work)) return false;
  return true;
}

bool same_dict(const Dict& a, const Dict& b, Work& work) {
  if (a.pairs->size() != b.pairs->size()) return false;
  return std::ranges::all_of(*a.pairs, [&](const Pair& pair) {
    work.take(b.pairs->size() / 8);
    return std::ranges::any_of(
        *b.pairs, [&](const Pair& other) { return equal(pair.key, other.key, work) && equal(pair.value, other.value, work); });
  });
}

bool same_range(const Range& a, const Range& b) {
  if (a.size() != b.size()) return false;
  return a.size() == 0 || (a.start == b.start && (a.size() == 1 || a.step == b.step));
}

// a < b, or a <= b if `or_equal`.
bool ordered(const Value& a, const Value& b, bool or_equal, Work& work) {
  work.take(1);
  demand_defined(a);
  demand_defined(b);
  if (const auto left = number_of(a), right = number_of(b); left && right) return or_equal ? *left <= *right : *left < *right;
  if (a.text() != nullptr && b.text() != nullptr) {
    work.take_read(std::min(a.text()->size(), b.text()->size()));
    const auto order = a.text()->compare(*b.text());  // the byte order of UTF-8 is the order of the code points
    return or_equal ? order <= 0 : order < 0;
  }
  if (a.is<LargeInteger>() || b.is<LargeInteger>()) unsupported("the order of an integer of more than 64 bits");
  const auto *const left = a.as<Sequence>(), *const right = b.as<Sequence>();
  if (left == nullptr || right == nullptr || left->tuple != right->tuple)
    fail(fmt::format("{} and {} have no order", type_of(a), type_of(b)));
  const auto common = std::min(left->items->size(), right->items->size());
  for (std::size_t i = 0; i < common; ++i)
    if (!equal((*left->items)[i], (*right->items)[i], work))
      return ordered((*left->items)[i], (*right->items)[i], or_equal, work);
  return or_equal ? left->items->size() <= right->items->size() : left->items->size() < right->items->size();
}

}  // namespace

bool equal(const Value& a, const Value& b, Work& work) {
  work.take(1);
  if (const auto left = number_of(a), right = number_of(b); left && right) return *left == *right;
  if ((a.is<LargeInteger>() && b.is<double>()) || (a.is<double>() && b.is<LargeInteger>()))
    unsupported("comparing an integer of more than 64 bits with a float");
  if (a.held().index() != b.held().index()) return false;
  if (const auto* const left = a.as<LargeInteger>()) return *left->digits == *b.as<LargeInteger>()->digits;
  if (const auto* const text = a.text()) {
    if (text->size() != b.text()->size()) return false;
    work.take_read(text->size());
    return *text == *b.text();
  }
  if (const auto* const left = a.as<Sequence>())
    return left->tuple == b.as<Sequence>()->tuple && same_items(*left->items, *b.as<Sequence>()->items, work);
  if (const auto* const left = a.as<Dict>()) return same_dict(*left, *b.as<Dict>(), work);
  if (const auto* const left = a.as<Range>()) return same_range(*left, *b.as<Range>());
  if (const auto* const left = a.as<Once>()) return left->state == b.as<Once>()->state;
  if (const auto* const left = a.as<Callable>()) return left->function == b.as<Callable>()->function;
  if (const auto* const left = a.as<Loop>()) return left->state == b.as<Loop>()->state;
  if (a.is<Namespace*>()) return *a.as<Namespace*>() == *b.as<Namespace*>();
  if (a.is<View>()) unsupported("comparing views of dicts");
  return true;  // None, Undefined
}

bool less(const Value& a, const Value& b, Work& work) { return ordered(a, b, false, work); }
bool less_or_equal(const Value& a, const Value& b, Work& work) { return ordered(a, b, true, work); }

bool contains(const Value& in, const Value& item, Runtime& runtime) {
  if (const auto* const text = in.text()) {
    demand_defined(item);
    if (item.text() == nullptr) fail(fmt::format("'in' looks for {} in a text", type_of(item)));
    return find_first(*text, *item.text(), 0, runtime.work) != std::string_view::npos;
  }
  if (const auto* const dict = in.as<Dict>()) {
    if (!is_hashable(item, runtime.work)) fail(fmt::format("{} cannot be a key", type_of(item)));
    return find_key(*dict, item, runtime) != nullptr;
  }
  if (const auto* const once = in.as<Once>()) {  // as in Python, this consumes all items up to the found one, including it
    auto& [items, next] = *once->state;
    while (next < items.size())
      if (equal(items[next++], item, runtime.work)) return true;
    return false;
  }
  if (const auto* const sequence = in.as<Sequence>())
    return std::ranges::any_of(*sequence->items, [&](const Value& one) { return equal(one, item, runtime.work); });
  return std::ranges::any_of(runtime.items_of(in), [&](const Value& one) { return equal(one, item, runtime.work); });
}

bool is_hashable(const Value& value, Work& work) {
  work.take(1);
  if (const auto* const sequence = value.as<Sequence>())
    return sequence->tuple && std::ranges::all_of(*sequence->items, [&](const Value& item) { return is_hashable(item, work); });
  return !value.is<Dict>() && !value.is<View>();
}

}  // namespace terrace::lm::jinja
