// A config.json being read: what is asked for is known, and what is left at the end is refused by name, because the weights
// would be another model's.
//
// Owner:   a value. Threads: one.
// Errors:  Error(Exit::usage) that names the file, the key and its value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <terrace/examples/lm/models/model_config.h>

namespace terrace::lm {

// What a config.json says of its language model: the file itself, unless it is that of a model with further parts (Wrapper).
nlohmann::json language_model_in(nlohmann::json config);

class ConfigReader {
 public:
  // An object. `name`: for messages.
  ConfigReader(nlohmann::json values, std::string name) : values_(std::move(values)), name_(std::move(name)) {}

  [[noreturn]] void refuse(const std::string& what, const std::string& mend) const;
  // As the library completes the file: what it takes for absent keys, and of two objects of rotary positions the one that
  // counts.
  void complete_for(const Family& family);
  // Null is as good as no key.
  const nlohmann::json* find(std::string_view key);
  const nlohmann::json* find_at(std::string_view pointer);
  std::optional<std::int64_t> integer(std::string_view key);
  std::int64_t size(std::string_view key);
  std::int64_t size(const Words& names);  // under the names that versions gave it
  std::optional<double> number(const Words& keys);
  bool truth(std::string_view key, bool usual);
  std::optional<bool> truth(std::string_view key);  // nothing: the family has no such key
  // Of the weights, in either spelling; fp16, which overflows in training, counts as bf16. fp32 if no type is told.
  DType dtype();
  std::optional<Activation> activation(const Family& family);  // nothing: as usual in the family
  double cap(const CapNumber& cap);
  double query_scalar(const Scales& scales);
  // Angles of long positions that are changed. `longest`: max_position_embeddings.
  Rotary scaling_of(const RotaryPositions& rotary, std::int64_t longest);
  double fraction(const RotaryPositions& rotary);  // the part of a head that is rotated
  std::optional<layers::RotatedBlocks> rotated_blocks(const RotaryPositions& rotary, std::int64_t blocks);
  layers::Windows windows(const WindowKeys& keys, std::int64_t blocks, const layers::RotatedBlocks& rotated);
  void demand_fixed(const FixedValues& fixed);
  void skip(const Words& keys) { known_.insert(known_.end(), keys.begin(), keys.end()); }
  // What is left. Keys that say false or 0, as switches that are off, are answered: "use_mrope (false)".
  [[nodiscard]] std::vector<std::string> demand_nothing_else(const Family& family) const;

  [[nodiscard]] static std::string shown(const nlohmann::json& value);  // for messages

 private:
  // The scaling of one object, if it is there.
  Rotary scaling_at(std::string_view pointer, const RotaryPositions& rotary, std::int64_t longest);

  nlohmann::json values_;
  std::string name_;
  std::vector<std::string> known_;
};

}  // namespace terrace::lm
