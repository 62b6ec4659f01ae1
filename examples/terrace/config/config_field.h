// The place of an option's value in the configuration. Its type decides what the option accepts: a number, a flag, a text, a
// word of a closed set (words.h), paths, or a value with a text of its own.
//
// Owner:   a value; the RunConfig is the caller's.
// Threads: any.
// Errors:  write() throws what the parser of a value with a text of its own throws.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/config/words.h>

namespace terrace::cli {

class ConfigField {
 public:
  // A value as TOML and JSON have it.
  using Value = std::variant<std::string, std::int64_t, double, bool, std::vector<std::string>>;
  enum class Kind : std::uint8_t { integer, real, flag, text, path, paths };

  template <class T>
  ConfigField(T RunConfig::*member)  // NOLINT(google-explicit-constructor): in the option table, a member is its place
      : kind_(kind_of<T>()),
        read_([member](const RunConfig& config) { return value(config.*member); }),
        write_([member](RunConfig& config, const Value& given) { config.*member = from<T>(given); }) {}

  // A value with a text of its own.
  template <class T, class Parse, class Print>
  ConfigField(T RunConfig::*member, Parse parse, Print print)
      : kind_(Kind::text),
        read_([member, print](const RunConfig& config) { return Value(std::string(print(config.*member))); }),
        write_(
            [member, parse](RunConfig& config, const Value& given) { config.*member = parse(std::get<std::string>(given)); }) {}

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] Value read(const RunConfig& config) const { return read_(config); }
  void write(RunConfig& config, const Value& value) const { write_(config, value); }  // `value`: of the kind

 private:
  using Paths = std::vector<std::filesystem::path>;

  template <class T>
  static constexpr Kind kind_of() {
    if constexpr (std::same_as<T, bool>) return Kind::flag;
    if constexpr (std::integral<T>) return Kind::integer;
    if constexpr (std::same_as<T, double>) return Kind::real;
    if constexpr (std::same_as<T, std::filesystem::path>) return Kind::path;
    return std::same_as<T, Paths> ? Kind::paths : Kind::text;
  }
  template <class T>
  static Value value(const T& v) {
    if constexpr (HasWords<T>) {
      return std::string(word_of(v));
    } else if constexpr (std::same_as<T, std::filesystem::path>) {
      return v.string();
    } else if constexpr (std::same_as<T, Paths>) {
      std::vector<std::string> texts;
      for (const auto& path : v) texts.push_back(path.string());
      return texts;
    } else if constexpr (std::integral<T> && !std::same_as<T, bool>) {
      return static_cast<std::int64_t>(v);
    } else {
      return v;
    }
  }
  template <class T>
  static T from(const Value& given) {
    if constexpr (HasWords<T>) {
      return value_of<T>(std::get<std::string>(given));
    } else if constexpr (std::same_as<T, Paths>) {
      const auto& texts = std::get<std::vector<std::string>>(given);
      return {texts.begin(), texts.end()};
    } else if constexpr (std::same_as<T, std::filesystem::path>) {
      return std::get<std::string>(given);
    } else if constexpr (std::integral<T> && !std::same_as<T, bool>) {
      return static_cast<T>(std::get<std::int64_t>(given));
    } else {
      return std::get<T>(given);
    }
  }

  Kind kind_;
  std::function<Value(const RunConfig&)> read_;
  std::function<void(RunConfig&, const Value&)> write_;
};

}  // namespace terrace::cli
