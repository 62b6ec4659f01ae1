// The values of a template: the Python values that templates use, which print, compare and iterate as in Python.
//
// Values never change, except namespaces, loops, and values that can be iterated only once; so copies share their contents.
//
// Owner:   values; a namespace belongs to the Runtime. Threads: one at a time. Errors: Fault.
#pragma once

#include <cstddef>
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
#include <terrace/examples/lm/chat/jinja/work.h>

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
struct LargeInteger {                         // more than 64 bits: it can be printed and compared, but not computed with
  std::shared_ptr<const std::string> digits;  // as Python prints it
};
struct Text {
  std::shared_ptr<const std::string> bytes;
  bool markup = false;  // set by `safe` and `escape`: `+` escapes the other operand
};
struct Sequence {
  std::shared_ptr<const Values> items;
  bool tuple = false;
  int nesting = 1;  // depth of nested lists and dicts, including this one
};
struct Dict {
  std::shared_ptr<const std::vector<Pair>> pairs;
  int nesting = 1;
};
struct Range {
  std::int64_t start = 0, stop = 0, step = 1;
  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] std::int64_t at(std::int64_t index) const;  // `index` is less than size()
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
  using Held = std::variant<Undefined, None, bool, std::int64_t, LargeInteger, double, Text, Sequence, Dict, Range, View, Once,
                            Namespace*, Callable, Loop>;
  Value() = default;
  Value(Held held) : held_(std::move(held)) {}  // NOLINT: implicit, because a value is what it holds

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
  // True and False are 1 and 0, as in Python. Nothing for other values and for a LargeInteger.
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
// Variables by name, in the order in which they were set.
class Names {
 public:
  // Adds the number of compared bytes to `read`.
  [[nodiscard]] const Value* find(std::string_view name, std::size_t& read) const;
  // `kept`: the variables live until the template ends, so their memory is charged.
  void set(std::string_view name, Value value, Work& work, bool kept);
  [[nodiscard]] std::size_t size() const { return all_.size(); }
  [[nodiscard]] const std::vector<std::pair<std::string, Value>>& all() const { return all_; }
  void clear() { all_.clear(); }

 private:
  std::vector<std::pair<std::string, Value>> all_;
};
struct Namespace {
  Names names;
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
// A running loop. In `for … if`, an item is tested when the loop reaches it or looks ahead to it.
struct LoopState {
  Values items;
  std::size_t next = 0;               // index in `items`
  std::function<bool(Value&)> keeps;  // the test; it may replace the item by a tuple
  bool has_size = true;               // the number of items is known without testing
  bool all_kept = false;              // count() has already tested the remaining items
  std::int64_t index0 = -1, length = -1;
  Value before, current;
  std::optional<Value> after;
  Values* last_changed = nullptr;  // owned by the Runtime, because a value may contain the loop that it is compared in

  bool advance();        // moves to the next item; false at the end
  bool look_ahead();     // whether another item follows; if so, it is in `after`
  std::int64_t count();  // the number of all items

 private:
  std::optional<Value> pull();
};

// Values made outside a rendering, such as the input of a template; no work is charged.
Value undefined(std::string why);
Value text_value(std::string text, bool markup = false);
Value list_value(Values items, bool tuple = false);  // Fault if it is nested too deeply
Value dict_value(std::vector<Pair> pairs);           // of equal keys, the last value is kept at the first place
Value large_integer(std::string digits);

// The state of one rendering: the remaining work, the depth, the namespaces, and the time.
class Runtime {
 public:
  Work work;
  std::deque<Namespace> namespaces;
  std::deque<Values> last_changed;  // of the loops that use `changed`
  std::optional<std::int64_t> now;  // in seconds, for strftime_now; absent: the function is undefined

  Runtime() = default;
  ~Runtime() = default;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Reserves and charges memory for a list of `items` values.
  Values make_room(std::size_t items);
  Value make_list(Values items, bool tuple = false);  // `items` is from make_room()
  Value make_pair(const Pair& pair);                  // a tuple
  Value make_once(Values items);                      // `items` is from make_room()
  Value make_text(std::string_view text, bool markup = false);
  Value make_text(Draft text, bool markup = false);
  Value make_undefined(std::string why);
  Value make_function(std::string name, std::function<Value(Runtime&, Arguments&)> call, bool is_macro = false);
  // All items of an iterable value, as in list().
  Values items_of(const Value& value);
  Value str(const Value& value);  // a text is returned unchanged
  Value repr(const Value& value);

  // While an object of this class exists, evaluation is one level deeper.
  class Deeper {
   public:
    explicit Deeper(Runtime& runtime) : runtime_(runtime) {
      runtime_.work.take(1);
      if (runtime_.depth_ >= kMostDepth) too_much("macros or filters call one another too deeply");
      ++runtime_.depth_;
    }
    ~Deeper() { --runtime_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Runtime& runtime_;
  };

 private:
  int depth_ = 0;
};

bool is_true(const Value& value);
std::string type_of(const Value& value);                                // "dict object", the name in messages
std::string number_text(double number);                                 // repr(float)
std::optional<std::int64_t> length_of(const Value& value, Work& work);  // len(); nothing for values without a length
const Value* find_key(const Dict& dict, const Value& key, Runtime& runtime);
void print(const Value& value, bool quoted, Draft& out, Runtime& runtime);
void demand_defined(const Value& value);  // throws a Fault that says what is undefined

}  // namespace terrace::lm::jinja
