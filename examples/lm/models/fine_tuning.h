// From a published model to adapters of it: the weights with which fine-tuning begins, and the files that it ends with.
//
//   auto config = read_model_dir(directory);
//   config.adapters = adapters_of(config.family, …);
//   engine.fill(first_weights(directory, config, seed));
//   … train …
//   save_adapters(engine, new_directory, config, directory, rank == 0);
//
// Owner:   values; a WeightSource keeps its files open.
// Threads: any; save_adapters() as Engine: all ranks call it.
// Errors:  those of weights_from() and adapters_from(); Error if a file cannot be written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <terrace/examples/lm/models/adapters.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/lm/models/model_dir.h>
#include <terrace/offload/io/io_choice.h>
#include <terrace/parallel/run/engine.h>

namespace terrace::lm {

ModelConfig without_adapters(ModelConfig config);
// Reads adapters from `adapters`, and all other weights from `base`.
WeightSource with_adapters(const WeightSource& base, const WeightSource& adapters);
// The adapters of a PEFT directory; if it is empty, new ones, drawn from the seed.
WeightSource first_adapters(const ModelConfig& config, std::uint64_t seed, const std::filesystem::path& directory = {},
                            const IoChoice& io = {});
// The weights of a model's directory or safetensors file, and the model's adapters, if it has any.
WeightSource first_weights(const std::filesystem::path& base, const ModelConfig& config, std::uint64_t seed,
                           const std::filesystem::path& adapters = {}, const IoChoice& io = {});

// Writes a PEFT directory of the adapters that the engine has trained. It visits all weights, and keeps the adapters in memory.
// `base`: the name of the model that they belong to. `writes`: true on the rank that writes the files.
void save_adapters(Engine& engine, const std::filesystem::path& directory, const ModelConfig& config, const std::string& base,
                   bool writes = true, const IoChoice& io = {});
// Writes a directory of Hugging Face's library of a model without adapters: config.json and model.safetensors. Other keys are
// those of the config.json in `base`, if it is not empty. The tokenizer's files are the caller's (tokenizer_files.h).
void save_model(Engine& engine, const std::filesystem::path& directory, const ModelConfig& config,
                const std::filesystem::path& base = {}, bool writes = true, const IoChoice& io = {});

}  // namespace terrace::lm
