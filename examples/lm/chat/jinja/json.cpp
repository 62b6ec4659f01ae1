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
  Writer(const JsonForm& form, Runtime& runtime) : form_(form), runtime_(runtime) {}

  std::string all(const Value& value) {
    write(value);
    return std::move(out_);
  }

 private:
  void write(const Value& value) {
    runtime_.work.take(1);
    if (out_.size() > kMostBytes) runtime_.work.take_text(out_.size());
    if (const auto* const text = value.text()) return quoted(*text);
    if (const auto* const sequence = value.as<Sequence>()) {
      return group('[', ']', sequence->items->size(), [&](std::size_t i) { write((*sequence->items)[i]); });
    }
    if (const auto* const dict = value.as<Dict>()) return write(*dict);
    const auto simple = plain(value);
    if (simple.empty()) fail(fmt::format("'tojson' does not take {}", type_of(value)));
    out_ += simple;
  }

  void write(const Dict& dict) {
    auto pairs = *dict.pairs;
    runtime_.work.take(pairs.size());
    if (form_.sorts_keys)
      std::ranges::stable_sort(pairs, [&](const Pair& a, const Pair& b) { return less(a.key, b.key, runtime_.work); });
    group('{', '}', pairs.size(), [&](std::size_t i) {
      if (const auto* const text = pairs[i].key.text()) {
        quoted(*text);
      } else {
        const auto key = plain(pairs[i].key);
        if (key.empty()) fail(fmt::format("'tojson' does not take {} as a key", type_of(pairs[i].key)));
        out_ += '"' + key + '"';
      }
      out_ += form_.after_key;
      write(pairs[i].value);
    });
  }

  // null, true, false, and numbers; empty for others.
  static std::string plain(const Value& value) {
    if (value.is<None>()) return "null";
    if (const auto* const flag = value.as<bool>()) return *flag ? "true" : "false";
    if (const auto* const number = value.as<std::int64_t>()) return std::to_string(*number);
    const auto* const real = value.as<double>();
    if (real == nullptr) return {};
    if (std::isnan(*real)) return "NaN";
    if (std::isinf(*real)) return *real > 0 ? "Infinity" : "-Infinity";
    return number_text(*real);
  }

  template <class Each>
  void group(char open, char close, std::size_t count, const Each& each) {
    out_ += open;
    ++depth_;
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) out_ += form_.between;
      new_line();
      each(i);
    }
    --depth_;
    if (count > 0) new_line();
    out_ += close;
  }
  void new_line() {
    if (!form_.indent) return;
    const auto bytes = form_.indent->size() * static_cast<std::size_t>(depth_);
    runtime_.work.take_text(bytes);
    out_ += '\n';
    for (int i = 0; i < depth_; ++i) out_ += *form_.indent;
  }

  void quoted(std::string_view text) {
    runtime_.work.take_text(text.size());
    out_ += '"';
    for (const auto code : decoded(text)) {
      constexpr std::u32string_view kEscaped = U"\"\\\n\r\t\b\f";
      if (const auto at = kEscaped.find(code); at != std::u32string_view::npos) {
        out_ += '\\';
        out_ += "\"\\nrtbf"[at];
      } else if (code < 0x20 || (form_.only_ascii && code >= 0x7f)) {
        if (code == 0x7f)
          out_ += '\x7f';
        else if (code >= 0x10000)
          out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xd7c0 + (static_cast<unsigned>(code) >> 10U),
                              0xdc00 + (static_cast<unsigned>(code) & 0x3ffU));
        else
          out_ += fmt::format("\\u{:04x}", static_cast<unsigned>(code));
      } else {
        append_code_point(out_, code);
      }
    }
    out_ += '"';
  }

  const JsonForm& form_;
  Runtime& runtime_;
  std::string out_;
  int depth_ = 0;
};

}  // namespace

std::string to_json(const Value& value, const JsonForm& form, Runtime& runtime) { return Writer(form, runtime).all(value); }

Value from_json(const nlohmann::ordered_json& json) {
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean: return Value(json.get<bool>());
    case Type::number_integer: return Value(json.get<std::int64_t>());
    case Type::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      if (number > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) unsupported("an integer of more than 64 bits");
      return Value(static_cast<std::int64_t>(number));
    }
    case Type::number_float: return Value(json.get<double>());
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
