// A model in a directory in the format of Hugging Face's library: config.json, weights (weight_files.h), and tokenizer files,
// which are only copied.
//
// A key of config.json is accepted if it is a size or a number of the model, if its value matches what the family computes, if
// it does not affect the computation, or if it is an unknown switch that is off (then listed in `unread`: "use_mrope (false)").
// Anything else is refused by name, because the weights would belong to another model. Both spellings are read: rope_theta and
// torch_dtype, and those of transformers 5, rope_parameters and dtype.
//
// Owner:   values.
// Threads: any.
// Errors:  Error(ErrorKind::refused) for a model that terrace does not have, with the key and its value;
//          Error(ErrorKind::corrupt) if config.json is damaged.
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
#include <terrace/offload/io/io_choice.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::lm {

inline constexpr const char* kModelConfigFile = "config.json";

// The model of a directory: family and sizes, with the longest sequence as seq_len. dtype is that of its weights, bf16 for
// fp16. The caller sets the ranks.
ModelConfig read_model_dir(const std::filesystem::path& directory, std::vector<std::string>* unread = nullptr);
// The same for the text of a config.json. `name`: for messages.
ModelConfig parse_model_config(std::string_view text, const std::string& name, std::vector<std::string>* unread = nullptr);

// The config.json of a model. `base`: the config.json of the model's original directory, whose other keys are kept; null: none.
// Throws Error(ErrorKind::refused) for a model that the library does not have.
nlohmann::json model_config_json(const ModelConfig& config, DType weights, const nlohmann::json& base);

// Writes the weight files of a model: one, or several of at most `most_bytes` with an index. `read` gives the elements [first,
// first + n) of a parameter; it is called in ascending order.
using ReadRange = std::function<void(const ParamSpec& param, std::uint64_t first, TensorView range)>;
struct NamedParam {
  const ParamSpec* param = nullptr;
  std::string name;  // in the file
};
void write_weight_file(const std::filesystem::path& file, std::span<const NamedParam> params, DType dtype,
                       const ReadRange& read, const IoChoice& io = {});
void write_weight_files(const std::filesystem::path& directory, const Model& whole_model, DType dtype, std::uint64_t most_bytes,
                        const ReadRange& read, const IoChoice& io = {});

}  // namespace terrace::lm
