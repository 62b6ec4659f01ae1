#include <map>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/examples/lm/chat/jinja/arguments.h>
#include <terrace/examples/lm/chat/jinja/compare.h>
#include <terrace/examples/lm/chat/jinja/filters.h>
#include <terrace/examples/lm/chat/jinja/operators.h>

namespace terrace::lm::jinja {
namespace {

using Test = bool (*)(const Value&, Runtime&, Arguments&);

// True if the remainder is `by`.
bool has_remainder(const Value& value, const Value& divisor, std::int64_t by, Runtime& runtime) {
  return equal(arithmetic(Expression::Kind::remainder, value, divisor, runtime), Value(by), runtime.work);
}

template <bool (*kIs)(const Value&)>
bool plain(const Value& value, Runtime&, Arguments& given) {
  const Bound bound("is", given, {});
  return kIs(value);
}

template <Compared kHow>
bool compared(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("is", given, {"other"}, 1);
  return compare(kHow, value, bound[0], runtime);
}

bool is_iterable(const Value& v) {
  return v.is_undefined() || v.text() != nullptr || v.is<Sequence>() || v.is<Dict>() || v.is<Range>() || v.is<View>() ||
         v.is<Once>() || v.is<Loop>();
}

bool is_same(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("sameas", given, {"other"}, 1);
  const auto is_single = [](const Value& v) { return v.is<None>() || v.is<bool>(); };
  if (!is_single(value) && !is_single(bound[0])) unsupported("'sameas' for other values than true, false and none");
  return value.held().index() == bound[0].held().index() && equal(value, bound[0], runtime.work);
}

bool is_defined(const Value& v) { return !v.is_undefined(); }
bool is_undefined(const Value& v) { return v.is_undefined(); }
template <class T>
bool is_held(const Value& v) {
  return v.is<T>();
}
template <bool kWhich>
bool is_flag(const Value& v) {
  return v.is<bool>() && *v.as<bool>() == kWhich;
}
bool is_integer(const Value& v) { return v.is<std::int64_t>() || v.is<LargeInteger>(); }
bool is_number(const Value& v) { return v.integer() || v.is<double>() || v.is<LargeInteger>(); }
bool is_sequence(const Value& v) {
  return v.is_undefined() || v.text() != nullptr || v.is<Sequence>() || v.is<Dict>() || v.is<Range>();
}
bool is_callable(const Value& v) { return v.is<Callable>() || v.is_undefined() || v.is<Loop>(); }

template <int kRemainder>
bool parity(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound(kRemainder == 1 ? "odd" : "even", given, {});
  return has_remainder(value, Value(std::int64_t{2}), kRemainder, runtime);
}
bool is_divisible(const Value& value, Runtime& runtime, Arguments& given) {
  const Bound bound("divisibleby", given, {"num"}, 1);
  return has_remainder(value, bound[0], 0, runtime);
}

const std::map<std::string_view, Test>& tests() {
  static const std::map<std::string_view, Test> all{
      {"defined", plain<is_defined>},
      {"undefined", plain<is_undefined>},
      {"none", plain<is_held<None>>},
      {"boolean", plain<is_held<bool>>},
      {"true", plain<is_flag<true>>},
      {"false", plain<is_flag<false>>},
      {"integer", plain<is_integer>},
      {"float", plain<is_held<double>>},
      {"number", plain<is_number>},
      {"string", plain<is_held<Text>>},
      {"mapping", plain<is_held<Dict>>},
      {"sequence", plain<is_sequence>},
      {"iterable", plain<is_iterable>},
      {"callable", plain<is_callable>},
      {"odd", parity<1>},
      {"even", parity<0>},
      {"divisibleby", is_divisible},
      {"in", compared<Compared::in>},
      {"sameas", is_same},
      {"eq", compared<Compared::equal>},
      {"equalto", compared<Compared::equal>},
      {"==", compared<Compared::equal>},
      {"ne", compared<Compared::unequal>},
      {"!=", compared<Compared::unequal>},
      {"lt", compared<Compared::less>},
      {"lessthan", compared<Compared::less>},
      {"<", compared<Compared::less>},
      {"le", compared<Compared::less_equal>},
      {"<=", compared<Compared::less_equal>},
      {"gt", compared<Compared::greater>},
      {"greaterthan", compared<Compared::greater>},
      {">", compared<Compared::greater>},
      {"ge", compared<Compared::greater_equal>},
      {">=", compared<Compared::greater_equal>},
  };
  return all;
}

}  // namespace

bool apply_test(std::string_view name, const Value& to, Arguments& given, Runtime& runtime) {
  runtime.work.take(2);
  const auto found = tests().find(name);
  if (found == tests().end()) unsupported(fmt::format("the test '{}'", base::printable(name)));
  return found->second(to, runtime, given);
}

}  // namespace terrace::lm::jinja
