// A model in a directory as Hugging Face's library reads and writes it: config.json, weights (weight_files.h), and files of its
// tokenizer, which are only copied.
//
// What config.json says is either a size or a number of the model, or a value with which it computes as its family does, or
// changes nothing that is computed, or is a switch that terrace does not know and that is off (`unread`: "use_mrope (false)").
// Anything else is refused by name, because the weights would be another model's.
// Both spellings are read: rope_theta and torch_dtype, and those of transformers 5, rope_parameters and dtype.
//
// Owner:   values.
// Threads: any.
// Errors:  Error(Exit::usage) for a model that terrace does not have, naming the key and its value; Error(Exit::corrupt) for a
//          config.json that is none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <terrace/core/math/tensor.h>
#include <terrace/examples/lm/models/model_config.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::lm {

inline constexpr const char* kModelConfigFile = "config.json";

// The model of a directory: family and sizes, of which seq_len is the longest sequence. dtype is that of its weights, bf16 for
// fp16. Ranks are the caller's.
ModelConfig read_model_dir(const std::filesystem::path& directory, std::vector<std::string>* unread = nullptr);
// The same of the text of a config.json. `name`: for messages.
ModelConfig parse_model_config(std::string_view text, const std::string& name, std::vector<std::string>* unread = nullptr);

// config.json of a model. `base`: that of the directory that it came from, whose further keys are kept; null: none.
// Throws Error(Exit::usage) for a model that the library does not have.
nlohmann::json model_config_json(const ModelConfig& config, DType weights, const nlohmann::json& base);

// Writes the files of weights of a model: one, or several of at most `most_bytes` with an index. `read` gives the elements
// [first, first + n) of a parameter, in order.
using ReadRange = std::function<void(const ParamSpec& param, std::uint64_t first, TensorView range)>;
struct NamedParam {
  const ParamSpec* param = nullptr;
  std::string name;  // in the file
};
void write_weight_file(const std::filesystem::path& file, std::span<const NamedParam> params, DType dtype,
                       const ReadRange& read);
void write_weight_files(const std::filesystem::path& directory, const Model& whole_model, DType dtype, std::uint64_t most_bytes,
                        const ReadRange& read);

}  // namespace terrace::lm
