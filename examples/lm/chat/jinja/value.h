// The values of a template: those of Python that templates use, as they print, compare and iterate there.
//
// Values never change, apart from namespaces, loops, and what can be iterated only once; so copies share what they hold.
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
struct LargeInteger {  // of more than 64 bits: it is printed and compared, and nothing is computed with it
  std::shared_ptr<const std::string> digits;  // as Python writes it
};
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
  [[nodiscard]] std::int64_t at(std::int64_t index) const;  // less than size()
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
  // True and False are 1 and 0, as in Python. Nothing for other values, and for a LargeInteger.
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
// Variables by their names, in the order in which they were set.
class Names {
 public:
  // `read` grows by the bytes that are compared.
  [[nodiscard]] const Value* find(std::string_view name, std::size_t& read) const;
  // `kept`: they outlive what set them, so their memory is charged.
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
// A loop under way. Items are tested (`for … if`) when the loop comes to them, or when it looks ahead.
struct LoopState {
  Values items;
  std::size_t next = 0;               // of items
  std::function<bool(Value&)> keeps;  // it may make a tuple of the item
  bool has_size = true;               // the number of items is known without testing them
  bool all_kept = false;              // count() has tested the items that are left
  std::int64_t index0 = -1, length = -1;
  Value before, current;
  std::optional<Value> after;
  Values* last_changed = nullptr;  // of the Runtime: a value may hold the loop that it is compared in

  bool advance();        // to the next item; false at the end
  bool look_ahead();     // whether there is one more, which is then in `after`
  std::int64_t count();  // of all items

 private:
  std::optional<Value> pull();
};

// Values without a rendering, so that nothing is charged: those that a template is given.
Value undefined(std::string why);
Value text_value(std::string text, bool markup = false);
Value list_value(Values items, bool tuple = false);  // Fault if it is nested too deeply
Value dict_value(std::vector<Pair> pairs);  // the last of equal keys counts, at the place of the first; keys are hashable
Value large_integer(std::string digits);

// What a rendering shares: the work that is left, how deep it is, its namespaces, and its day.
class Runtime {
 public:
  Work work;
  std::deque<Namespace> namespaces;
  std::deque<Values> last_changed;  // of the loops that ask for it
  std::optional<std::int64_t> now;  // in seconds, for strftime_now; absent: there is no such function

  Runtime() = default;
  ~Runtime() = default;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Room for a list of so many items.
  Values make_room(std::size_t items);
  Value make_list(Values items, bool tuple = false);  // from make_room()
  Value make_pair(const Pair& pair);                  // a tuple
  Value make_once(Values items);                      // from make_room()
  Value make_text(std::string_view text, bool markup = false);
  Value make_text(Draft text, bool markup = false);
  Value make_undefined(std::string why);
  Value make_function(std::string name, std::function<Value(Runtime&, Arguments&)> call, bool is_macro = false);
  // All items of what can be iterated, as for list().
  Values items_of(const Value& value);
  Value str(const Value& value);  // a text, the value itself if it is one
  Value repr(const Value& value);

  // While one is there, what is evaluated is a level deeper.
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
std::string type_of(const Value& value);                                // "dict object", as messages name it
std::string number_text(double number);                                 // repr(float)
std::optional<std::int64_t> length_of(const Value& value, Work& work);  // len(); nothing for what has none
const Value* find_key(const Dict& dict, const Value& key, Runtime& runtime);
void print(const Value& value, bool quoted, Draft& out, Runtime& runtime);
void demand_defined(const Value& value);  // Fault that says what is undefined

}  // namespace terrace::lm::jinja
