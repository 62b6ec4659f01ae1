#include <terrace/examples/lm/chat/jinja/json.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/examples/lm/chat/jinja/code_points.h>
#include <terrace/examples/lm/chat/jinja/compare.h>

namespace terrace::lm::jinja {
namespace {

class Writer {
 public:
  Writer(const JsonForm& form, Runtime& runtime) : form_(form), runtime_(runtime), out_(runtime.work) {}

  Draft all(const Value& value) {
    write(value);
    return std::move(out_);
  }

 private:
  void write(const Value& value) {
    runtime_.work.take(1);
    if (const auto* const text = value.text()) return quoted(*text);
    if (const auto* const sequence = value.as<Sequence>()) {
      return group('[', ']', sequence->items->size(), [&](std::size_t i) { write((*sequence->items)[i]); });
    }
    if (const auto* const dict = value.as<Dict>()) return write(*dict);
    const auto simple = plain(value);
    if (simple.empty()) fail(fmt::format("'tojson' does not take {}", type_of(value)));
    out_.add(simple);
  }

  void write(const Dict& dict) {
    if (!form_.sorts_keys) return write(*dict.pairs);
    runtime_.work.take(dict.pairs->size());
    runtime_.work.take_bytes(2 * dict.pairs->size() * sizeof(Pair));  // sorting makes a copy
    auto pairs = *dict.pairs;
    std::ranges::stable_sort(pairs, [&](const Pair& a, const Pair& b) { return less(a.key, b.key, runtime_.work); });
    write(pairs);
  }
  void write(const std::vector<Pair>& pairs) {
    group('{', '}', pairs.size(), [&](std::size_t i) {
      if (const auto* const text = pairs[i].key.text()) {
        quoted(*text);
      } else {
        const auto key = plain(pairs[i].key);
        if (key.empty()) fail(fmt::format("'tojson' does not take {} as a key", type_of(pairs[i].key)));
        out_.add('"');
        out_.add(key);
        out_.add('"');
      }
      out_.add(form_.after_key);
      write(pairs[i].value);
    });
  }

  // null, true, false and numbers; empty for other values.
  static std::string plain(const Value& value) {
    if (value.is<None>()) return "null";
    if (const auto* const flag = value.as<bool>()) return *flag ? "true" : "false";
    if (const auto* const number = value.as<std::int64_t>()) return std::to_string(*number);
    if (const auto* const number = value.as<LargeInteger>()) return *number->digits;
    const auto* const real = value.as<double>();
    if (real == nullptr) return {};
    if (std::isnan(*real)) return "NaN";
    if (std::isinf(*real)) return *real > 0 ? "Infinity" : "-Infinity";
    return number_text(*real);
  }

  template <class Each>
  void group(char open, char close, std::size_t count, const Each& each) {
    out_.add(open);
    ++depth_;
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) out_.add(form_.between);
      new_line();
      each(i);
    }
    --depth_;
    if (count > 0) new_line();
    out_.add(close);
  }
  void new_line() {
    if (!form_.indent) return;
    out_.add('\n');
    for (int i = 0; i < depth_; ++i) out_.add(*form_.indent);
  }

  void quoted(std::string_view text) {
    out_.add('"');
    for (std::size_t at = 0; at < text.size();) {
      const auto [code, bytes] = code_point_at(text, at);
      constexpr std::u32string_view kEscaped = U"\"\\\n\r\t\b\f";
      if (const auto which = kEscaped.find(code); which != std::u32string_view::npos) {
        out_.add('\\');
        out_.add("\"\\nrtbf"[which]);
      } else if (code < 0x20 || (form_.only_ascii && code > 0x7f)) {
        const auto number = static_cast<std::uint32_t>(code);
        append_escape(out_, 'u', number < 0x10000 ? number : 0xd7c0 + (number >> 10U), 4);
        if (number >= 0x10000) append_escape(out_, 'u', 0xdc00 + (number & 0x3ffU), 4);
      } else {
        out_.add(text.substr(at, bytes));
      }
      at += bytes;
    }
    out_.add('"');
  }

  const JsonForm& form_;
  Runtime& runtime_;
  Draft out_;
  int depth_ = 0;
};

}  // namespace

Draft to_json(const Value& value, const JsonForm& form, Runtime& runtime) { return Writer(form, runtime).all(value); }

Value from_json(const nlohmann::ordered_json& json) {
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean: return Value(json.get<bool>());
    case Type::number_integer: return Value(json.get<std::int64_t>());
    case Type::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      if (number > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) return large_integer(std::to_string(number));
      return Value(static_cast<std::int64_t>(number));
    }
    case Type::number_float: return Value(json.get<double>());
    case Type::binary: {
      const auto& digits = json.get_binary();
      return large_integer(std::string(digits.begin(), digits.end()));
    }
    case Type::string: return text_value(json.get<std::string>());
    case Type::array: {
      Values items;
      for (const auto& item : json) items.push_back(from_json(item));
      return list_value(std::move(items));
    }
    case Type::object: {
      std::vector<Pair> pairs;
      for (const auto& [key, value] : json.items()) pairs.push_back({text_value(key), from_json(value)});
      return dict_value(std::move(pairs));
    }
    default: return Value(None());
  }
}

}  // namespace terrace::lm::jinja
