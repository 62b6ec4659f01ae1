// The values of a template: those of Python that templates use, as they print, compare and iterate there.
//
// Values never change, apart from namespaces, loops, and what can be iterated only once; so copies share what they hold.
//
// Owner:   values; a namespace belongs to the Runtime. Threads: one at a time. Errors: Fault.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <terrace/examples/lm/chat/jinja/fault.h>

namespace terrace::lm::jinja {

class Value;
class Runtime;
struct Pair;
struct Namespace;
struct Function;
struct LoopState;
struct OnceState;
using Values = std::vector<Value>;

struct Undefined {
  std::shared_ptr<const std::string> why;  // "'x' is undefined"
};
struct None {};
struct Text {
  std::shared_ptr<const std::string> bytes;
  bool markup = false;  // what `safe` and `escape` return: `+` escapes what it is joined with
};
struct Sequence {
  std::shared_ptr<const Values> items;
  bool tuple = false;
  int nesting = 1;  // of lists and dicts in it, itself among them
};
struct Dict {
  std::shared_ptr<const std::vector<Pair>> pairs;
  int nesting = 1;
};
struct Range {
  std::int64_t start = 0, stop = 0, step = 1;
  [[nodiscard]] std::int64_t size() const;
};
struct View {  // keys(), values() or items() of a dict
  enum class Of : std::uint8_t { keys, values, items };
  Dict dict;
  Of of = Of::keys;
};
struct Once {
  std::shared_ptr<OnceState> state;
};
struct Callable {
  std::shared_ptr<const Function> function;
};
struct Loop {
  std::shared_ptr<LoopState> state;
};

class Value {
 public:
  using Held = std::variant<Undefined, None, bool, std::int64_t, double, Text, Sequence, Dict, Range, View, Once, Namespace*,
                            Callable, Loop>;
  Value() = default;
  Value(Held held) : held_(std::move(held)) {}  // NOLINT: values are made of what they hold

  template <class T>
  [[nodiscard]] const T* as() const {
    return std::get_if<T>(&held_);
  }
  template <class T>
  [[nodiscard]] bool is() const {
    return std::holds_alternative<T>(held_);
  }
  [[nodiscard]] const Held& held() const { return held_; }
  [[nodiscard]] bool is_undefined() const { return is<Undefined>(); }
  // The bytes of a text; nullptr for other values.
  [[nodiscard]] const std::string* text() const { return is<Text>() ? as<Text>()->bytes.get() : nullptr; }
  // True and False are 1 and 0, as in Python.
  [[nodiscard]] std::optional<std::int64_t> integer() const;

 private:
  Held held_;
};

struct Pair {
  Value key, value;
};
struct OnceState {
  Values items;
  std::size_t next = 0;
};
struct Namespace {
  std::vector<std::pair<std::string, Value>> names;
  [[nodiscard]] const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};
struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};
struct Function {
  std::string name;
  bool is_macro = false;
  std::function<Value(Runtime&, Arguments&)> call;
};
// A loop under way. Items are tested (`for … if`) when the loop comes to them, or when it looks ahead.
struct LoopState {
  Values items;
  std::size_t next = 0;               // of items
  std::function<bool(Value&)> keeps;  // it may make a tuple of the item
  bool has_size = true;               // the number of items is known without testing them
  std::int64_t index0 = -1, length = -1;
  Value before, current;
  std::optional<Value> after;
  std::optional<Values> last_changed;

  bool advance();        // to the next item; false at the end
  bool look_ahead();     // whether there is one more, which is then in `after`
  std::int64_t count();  // of all items

 private:
  std::optional<Value> pull();
};

Value undefined(std::string why);
Value text_value(std::string text, bool markup = false);
Value list_value(Values items, bool tuple = false);  // Fault if it is nested too deeply
Value dict_value(std::vector<Pair> pairs);  // the last of equal keys counts, at the place of the first; keys are hashable

// What a rendering shares: the work that is left, its namespaces, and its day.
class Runtime {
 public:
  Work work;
  std::deque<Namespace> namespaces;
  std::optional<std::int64_t> now;  // in seconds, for strftime_now; absent: there is no such function

  Value make_list(Values items, bool tuple = false) {
    work.take(items.size() + 1);
    return list_value(std::move(items), tuple);
  }
  Value make_text(std::string text) {
    work.take_text(text.size());
    return text_value(std::move(text));
  }
  // All items of what can be iterated, as for list().
  Values items_of(const Value& value);
  std::string str(const Value& value);
  std::string repr(const Value& value);
};

bool is_true(const Value& value);
std::string type_of(const Value& value);                    // "dict object", as messages name it
std::string number_text(double number);                     // repr(float)
std::optional<std::int64_t> length_of(const Value& value);  // len(); nothing for what has none
const Value* find_key(const Dict& dict, const Value& key, Runtime& runtime);
void print(const Value& value, bool quoted, std::string& out, Runtime& runtime);
void demand_defined(const Value& value);  // Fault that says what is undefined

}  // namespace terrace::lm::jinja
