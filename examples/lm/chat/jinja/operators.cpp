#include <terrace/examples/lm/chat/jinja/operators.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/examples/lm/chat/jinja/code_points.h>
#include <terrace/examples/lm/chat/jinja/compare.h>
#include <terrace/examples/lm/chat/jinja/methods.h>

namespace terrace::lm::jinja {
namespace {

using Kind = Expression::Kind;

[[noreturn]] void too_large() { unsupported("an integer of more than 64 bits"); }

std::optional<double> real_of(const Value& value) {
  if (const auto number = value.integer()) return static_cast<double>(*number);
  if (const auto* const real = value.as<double>()) return *real;
  return {};
}

void demand_divisor(bool is_zero) {
  if (is_zero) fail("division by zero");
}

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
  demand_divisor(b == 0);
  if (a == std::numeric_limits<std::int64_t>::min() && b == -1) too_large();
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

// Like CPython's float_divmod: the remainder has the sign of the divisor.
std::pair<double, double> divided(double a, double b) {
  demand_divisor(b == 0);
  double remainder = std::fmod(a, b), quotient = (a - remainder) / b;
  if (remainder != 0) {
    if ((b < 0) != (remainder < 0)) {
      remainder += b;
      quotient -= 1;
    }
  } else {
    remainder = std::copysign(0.0, b);
  }
  if (quotient == 0) return {std::copysign(0.0, a / b), remainder};
  const double floored = std::floor(quotient);
  return {quotient - floored > 0.5 ? floored + 1 : floored, remainder};
}

Value power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    demand_divisor(base == 0);
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return Value(exponent == 0 ? std::int64_t{1} : base);
  if (base == -1) return Value(exponent % 2 == 0 ? std::int64_t{1} : std::int64_t{-1});
  std::int64_t out = 1;
  for (; exponent > 0; --exponent)  // at most 63 iterations
    if (__builtin_mul_overflow(out, base, &out)) too_large();
  return Value(out);
}

Value power(double base, double exponent) {
  if (base == 0 && exponent < 0) fail("zero has no negative power");
  if (base < 0 && std::isfinite(base) && std::isfinite(exponent) && exponent != std::floor(exponent))
    unsupported("a complex number");
  const double out = std::pow(base, exponent);
  if (std::isinf(out) && std::isfinite(base) && std::isfinite(exponent)) fail("a power is too large");
  return Value(out);
}

Value of_integers(Kind kind, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  bool overflows = false;
  switch (kind) {
    case Kind::add: overflows = __builtin_add_overflow(a, b, &out); break;
    case Kind::subtract: overflows = __builtin_sub_overflow(a, b, &out); break;
    case Kind::multiply: overflows = __builtin_mul_overflow(a, b, &out); break;
    case Kind::divide:
      demand_divisor(b == 0);
      return Value(static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
    case Kind::divide_whole: return Value(floor_quotient(a, b));
    case Kind::remainder: return Value(b == -1 ? std::int64_t{0} : a - floor_quotient(a, b) * b);
    default: return power(a, b);
  }
  if (overflows) too_large();
  return Value(out);
}

Value of_reals(Kind kind, double a, double b) {
  switch (kind) {
    case Kind::add: return Value(a + b);
    case Kind::subtract: return Value(a - b);
    case Kind::multiply: return Value(a * b);
    case Kind::divide: demand_divisor(b == 0); return Value(a / b);
    case Kind::divide_whole: return Value(divided(a, b).first);
    case Kind::remainder: return Value(divided(a, b).second);
    default: return power(a, b);
  }
}

Value joined(const Text& a, const Text& b, Runtime& runtime) {
  const bool markup = a.markup || b.markup;
  Draft out(runtime.work);
  out.reserve(a.bytes->size() + b.bytes->size());
  for (const auto* text : {&a, &b})
    if (markup && !text->markup)
      append_escaped(out, *text->bytes);
    else
      out.add(*text->bytes);
  return runtime.make_text(std::move(out), markup);
}

Value repeated(const Value& of, std::int64_t times, Runtime& runtime) {
  const auto count = static_cast<std::uint64_t>(std::max<std::int64_t>(0, times));
  if (const auto* const text = of.as<Text>()) {
    const auto size = text->bytes->size();
    if (size > 0 && count > kMostTextBytes / size) Work::demand_text(kMostTextBytes + 1);
    Draft out(runtime.work);
    out.reserve(size * count);
    for (std::uint64_t i = 0; size > 0 && i < count; ++i) out.add(*text->bytes);
    return runtime.make_text(std::move(out), text->markup);
  }
  const auto& sequence = *of.as<Sequence>();
  const auto size = sequence.items->size();
  if (size > 0 && count > kMostSteps / size) runtime.work.take(kMostSteps + 1);
  auto out = runtime.make_room(size * count);
  for (std::uint64_t i = 0; size > 0 && i < count; ++i) out.insert(out.end(), sequence.items->begin(), sequence.items->end());
  return runtime.make_list(std::move(out), sequence.tuple);
}

const char* sign_of(Kind kind) {
  switch (kind) {
    case Kind::add: return "+";
    case Kind::subtract: return "-";
    case Kind::multiply: return "*";
    case Kind::divide: return "/";
    case Kind::divide_whole: return "//";
    case Kind::remainder: return "%";
    default: return "**";
  }
}

bool can_repeat(const Value& value) { return value.text() != nullptr || value.is<Sequence>(); }

// The bounds of a slice, its number of items, and the distance between them.
struct Steps {
  std::int64_t start = 0, stop = 0, count = 0, step = 1;
};
Steps steps_of(std::int64_t size, const Value& start, const Value& stop, const Value& step) {
  const auto number = [](const Value& value) -> std::optional<std::int64_t> {
    if (value.is<None>()) return {};
    demand_defined(value);
    if (const auto whole = value.integer()) return whole;
    fail(fmt::format("{} is no bound of a slice", type_of(value)));
  };
  const auto by = number(step).value_or(1);
  if (by == 0) fail("the step of a slice is 0");
  const bool back = by < 0;
  const auto bound = [&](const Value& value, std::int64_t absent) {
    const auto given = number(value);
    if (!given) return absent;
    const auto at = *given < 0 ? *given + size : *given;
    return std::clamp<std::int64_t>(at, back ? -1 : 0, back ? size - 1 : size);
  };
  const auto first = bound(start, back ? size - 1 : 0), end = bound(stop, back ? -1 : size);
  return {.start = first, .stop = end, .count = Range{first, end, by}.size(), .step = by};
}

Value missing(const Value& of, const Value& key, Runtime& runtime) {
  if (const auto* const name = key.text())
    return runtime.make_undefined(fmt::format("'{}' has no attribute '{}'", type_of(of), base::printable(*name)));
  return runtime.make_undefined(fmt::format("{} has no element {}", type_of(of), base::printable(*runtime.repr(key).text())));
}

Value loop_attribute(LoopState& loop, std::string_view name, Runtime& runtime) {
  if (name == "index") return Value(loop.index0 + 1);
  if (name == "index0") return Value(loop.index0);
  if (name == "first") return Value(loop.index0 == 0);
  if (name == "last") return Value(!loop.look_ahead());
  if (name == "length") return Value(loop.count());
  if (name == "revindex") return Value(loop.count() - loop.index0);
  if (name == "revindex0") return Value(loop.count() - loop.index0 - 1);
  if (name == "depth") return Value(std::int64_t{1});
  if (name == "depth0") return Value(std::int64_t{0});
  if (name == "previtem") return loop.index0 == 0 ? runtime.make_undefined("there is no previous item") : loop.before;
  return loop.look_ahead() ? *loop.after : runtime.make_undefined("there is no next item");  // nextitem
}

}  // namespace

void demand_small(const Value& value) {
  if (value.is<LargeInteger>()) unsupported("computing with an integer of more than 64 bits");
}

void append_escaped(Draft& out, std::string_view text) {
  for (const char c : text) switch (c) {
      case '&': out.add("&amp;"); break;
      case '<': out.add("&lt;"); break;
      case '>': out.add("&gt;"); break;
      case '\'': out.add("&#39;"); break;
      case '"': out.add("&#34;"); break;
      default: out.add(c);
    }
}

Value arithmetic(Kind kind, const Value& a, const Value& b, Runtime& runtime) {
  demand_defined(a);
  demand_defined(b);
  demand_small(a);
  demand_small(b);
  if (kind == Kind::remainder && a.text() != nullptr) unsupported("formatting a text with '%'");
  if (const auto left = a.integer(), right = b.integer(); left && right) return of_integers(kind, *left, *right);
  if (const auto left = real_of(a), right = real_of(b); left && right) return of_reals(kind, *left, *right);
  if (kind == Kind::add && a.text() != nullptr && b.text() != nullptr) return joined(*a.as<Text>(), *b.as<Text>(), runtime);
  if (const auto* const left = a.as<Sequence>(), * const right = b.as<Sequence>();
      kind == Kind::add && left != nullptr && right != nullptr && left->tuple == right->tuple) {
    auto all = runtime.make_room(left->items->size() + right->items->size());
    all = *left->items;
    all.insert(all.end(), right->items->begin(), right->items->end());
    return runtime.make_list(std::move(all), left->tuple);
  }
  if (kind == Kind::multiply && can_repeat(a) && b.integer()) return repeated(a, *b.integer(), runtime);
  if (kind == Kind::multiply && can_repeat(b) && a.integer()) return repeated(b, *a.integer(), runtime);
  fail(fmt::format("'{}' does not take {} and {}", sign_of(kind), type_of(a), type_of(b)));
}

Value negative(const Value& value) {
  demand_defined(value);
  demand_small(value);
  if (const auto number = value.integer()) return of_integers(Kind::subtract, 0, *number);
  if (const auto* const real = value.as<double>()) return Value(-*real);
  fail(fmt::format("'-' does not take {}", type_of(value)));
}

Value positive(const Value& value) {
  demand_defined(value);
  if (const auto number = value.integer()) return Value(*number);
  if (value.is<double>() || value.is<LargeInteger>()) return value;
  fail(fmt::format("'+' does not take {}", type_of(value)));
}

bool compare(Compared how, const Value& a, const Value& b, Runtime& runtime) {
  auto& work = runtime.work;
  switch (how) {
    case Compared::equal: return equal(a, b, work);
    case Compared::unequal: return !equal(a, b, work);
    case Compared::less: return less(a, b, work);
    case Compared::less_equal: return less_or_equal(a, b, work);
    case Compared::greater: return less(b, a, work);
    case Compared::greater_equal: return less_or_equal(b, a, work);
    case Compared::in: return contains(b, a, runtime);
    case Compared::not_in: return !contains(b, a, runtime);
  }
  return false;
}

Value attribute_of(const Value& of, const Value& name, Runtime& runtime) {
  demand_defined(of);
  const auto& text = *name.text();
  if (auto* const* const space = of.as<Namespace*>()) {
    std::size_t read = text.size();
    const auto* const found = (*space)->names.find(text, read);
    runtime.work.take_read(read);
    if (found != nullptr) return *found;
  }
  if (const auto* const loop = of.as<Loop>()) {
    if (is_loop_attribute(text)) return loop_attribute(*loop->state, text, runtime);
  }
  if (auto method = method_of(of, text, runtime)) return *method;
  if (const auto* const dict = of.as<Dict>())
    if (const auto* const found = find_key(*dict, name, runtime)) return *found;
  return missing(of, name, runtime);
}

Value item_of(const Value& of, const Value& key, Runtime& runtime) {
  demand_defined(of);
  if (const auto* const dict = of.as<Dict>()) {
    if (const auto* const found = is_hashable(key, runtime.work) ? find_key(*dict, key, runtime) : nullptr) return *found;
  } else if (const auto index = key.integer(); index && (of.text() != nullptr || of.is<Sequence>() || of.is<Range>())) {
    const auto size = *length_of(of, runtime.work);
    const auto at = *index < 0 ? *index + size : *index;
    if (at < 0 || at >= size) return missing(of, key, runtime);
    if (const auto* const sequence = of.as<Sequence>()) return (*sequence->items)[static_cast<std::size_t>(at)];
    if (const auto* const range = of.as<Range>()) return Value(range->at(at));
    return runtime.make_text(picked(*of.text(), at, 1, 1, runtime.work));
  }
  if (key.text() != nullptr && !of.is<Dict>()) return attribute_of(of, key, runtime);
  if (const auto* const name = key.text())
    if (auto method = method_of(of, *name, runtime)) return *method;
  return missing(of, key, runtime);
}

Value slice_of(const Value& of, const Value& start, const Value& stop, const Value& step, Runtime& runtime) {
  demand_defined(of);
  if (const auto* const range = of.as<Range>()) {
    const auto [first, end, count, by] = steps_of(range->size(), start, stop, step);
    Range out;
    if (__builtin_mul_overflow(first, range->step, &out.start) || __builtin_add_overflow(out.start, range->start, &out.start) ||
        __builtin_mul_overflow(end, range->step, &out.stop) || __builtin_add_overflow(out.stop, range->start, &out.stop) ||
        __builtin_mul_overflow(by, range->step, &out.step))
      too_large();
    return Value(out);
  }
  if (const auto* const sequence = of.as<Sequence>()) {
    const auto [first, end, count, by] = steps_of(static_cast<std::int64_t>(sequence->items->size()), start, stop, step);
    auto out = runtime.make_room(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) out.push_back((*sequence->items)[static_cast<std::size_t>(first + i * by)]);
    return runtime.make_list(std::move(out), sequence->tuple);
  }
  if (of.text() == nullptr) fail(fmt::format("{} has no slices", type_of(of)));
  const auto [first, end, count, by] = steps_of(*length_of(of, runtime.work), start, stop, step);
  return runtime.make_text(picked(*of.text(), first, by, count, runtime.work), of.as<Text>()->markup);
}

}  // namespace terrace::lm::jinja
