// Reads a config.json. Each key that is asked for becomes known; demand_nothing_else() refuses the keys that are left, because
// they may change what the model computes.
//
// Owner:   a value. Threads: one.
// Errors:  Error(ErrorKind::refused) that names the file, the key and its value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <terrace/examples/lm/models/model_config.h>

namespace terrace::lm {

// The language model's part of a config.json: the whole file, or the inner object if the model has further parts (Wrapper).
nlohmann::json language_model_in(nlohmann::json config);

class ConfigReader {
 public:
  // `values`: a JSON object. `name`: for messages.
  ConfigReader(nlohmann::json values, std::string name) : values_(std::move(values)), name_(std::move(name)) {}

  [[noreturn]] void refuse(const std::string& what, const std::string& mend) const;
  // Completes the file as the library does: adds its defaults for absent keys, and keeps only the effective one of two objects
  // of rotary positions.
  void complete_for(const Family& family);
  // A null value counts as an absent key.
  const nlohmann::json* find(std::string_view key);
  const nlohmann::json* find_at(std::string_view pointer);
  std::optional<std::int64_t> integer(std::string_view key);
  std::int64_t size(std::string_view key);
  std::int64_t size(const Words& names);  // `names`: the key's names in different versions of the library
  std::optional<double> number(const Words& keys);
  bool truth(std::string_view key, bool usual);
  std::optional<bool> truth(std::string_view key);  // nothing: `key` is empty, because the family has no such key
  // The dtype of the weights, in either spelling of the key. fp16 overflows in training, so it counts as bf16. Default: fp32.
  DType dtype();
  std::optional<Activation> activation(const Family& family);  // nothing: the file does not name one
  double cap(const CapNumber& cap);
  double query_scalar(const Scales& scales);
  // How the angles of long positions are changed. `longest`: max_position_embeddings.
  Rotary scaling_of(const RotaryPositions& rotary, std::int64_t longest);
  double fraction(const RotaryPositions& rotary);  // the part of a head that is rotated
  std::optional<layers::RotatedBlocks> rotated_blocks(const RotaryPositions& rotary, std::int64_t blocks);
  layers::Windows windows(const WindowKeys& keys, std::int64_t blocks, const layers::RotatedBlocks& rotated);
  void demand_fixed(const FixedValues& fixed);
  void skip(const Words& keys) { known_.insert(known_.end(), keys.begin(), keys.end()); }
  // Refuses keys that were not asked for and may change the model. Returns the unknown keys that are false or 0, that is, off:
  // "use_mrope (false)".
  [[nodiscard]] std::vector<std::string> demand_nothing_else(const Family& family) const;

  [[nodiscard]] static std::string shown(const nlohmann::json& value);  // for messages

 private:
  // The scaling that one object describes; none if the object is absent.
  Rotary scaling_at(std::string_view pointer, const RotaryPositions& rotary, std::int64_t longest);

  nlohmann::json values_;
  std::string name_;
  std::vector<std::string> known_;
};

}  // namespace terrace::lm
