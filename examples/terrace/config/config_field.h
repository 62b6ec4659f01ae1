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

  template <class Part, class T>
  ConfigField(T Part::*member)  // NOLINT(google-explicit-constructor): in the option table, a member is its place
      : kind_(kind_of<T>()),
        read_([member](const RunConfig& config) { return value(part<Part>(config).*member); }),
        write_([member](RunConfig& config, const Value& given) { part<Part>(config).*member = from<T>(given); }) {}

  // A value that `print` returns as an option has it, and `parse` makes of that.
  template <class Part, class T, class Parse, class Print>
  ConfigField(T Part::*member, Parse parse, Print print)
      : ConfigField([member, print](const RunConfig& config) { return print(part<Part>(config).*member); },
                    [member, parse](RunConfig& config, const auto& given) { part<Part>(config).*member = parse(given); }) {}
  // A value in several places. `read` takes the configuration; `write` also takes the value, of the type that `read` returns.
  template <std::invocable<const RunConfig&> Read, class Write>
  ConfigField(Read read, Write write)
      : kind_(kind_of<std::decay_t<std::invoke_result_t<Read, const RunConfig&>>>()),
        read_([read](const RunConfig& config) { return value(read(config)); }),
        write_([write](RunConfig& config, const Value& given) {
          write(config, from<std::decay_t<std::invoke_result_t<Read, const RunConfig&>>>(given));
        }) {}

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] Value read(const RunConfig& config) const { return read_(config); }
  void write(RunConfig& config, const Value& value) const { write_(config, value); }  // `value`: of the kind

 private:
  using Paths = std::vector<std::filesystem::path>;

  // The part of a configuration that has this type.
  template <class Part, class Config>
  static constexpr auto& part(Config& config) {
    if constexpr (std::same_as<Part, lm::ModelConfig>) return config.model;
    if constexpr (std::same_as<Part, layers::Experts>) return config.model.experts;
    if constexpr (std::same_as<Part, DataConfig>) return config.data;
    if constexpr (std::same_as<Part, TrainConfig>) return config.train;
    if constexpr (std::same_as<Part, OptimizerSettings>) return config.train.rule;
    if constexpr (std::same_as<Part, PlanConfig>) return config.plan;
    if constexpr (std::same_as<Part, ParallelConfig>) return config.parallel;
    if constexpr (std::same_as<Part, MemoryConfig>) return config.memory;
    if constexpr (std::same_as<Part, RunOptions>) return config.run;
  }
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
