// Weights in and out of an engine, chunk by chunk: from and to a safetensors file, and their hash.
// The whole model is never in memory at once.
//
// Threads: as Engine. Errors: Error naming file and tensor; AnotherModel when a file lacks a tensor, or has another shape.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/models/family.h>
#include <terrace/parallel/run/engine.h>

namespace terrace::lm {

struct AnotherModel : Error {
  explicit AnotherModel(const std::string& what) : Error(what, Exit::usage) {}
};

// From a safetensors file with Hugging Face's names, for a model of that family; names may lack the family's optional prefix.
// All shapes are checked at once. Of a file with more positions than the model has, the first ones are used.
WeightSource weights_from(const std::filesystem::path& file, const Family& family, const Model& model);
// How many positions the file's position embedding has; 0 for a model without one.
std::uint64_t positions_in(const std::filesystem::path& file, const Family& family, const Model& model);

// The tensors of the file that the model does not have, so that the file is of another model. Two kinds are none of these:
// buffers that Hugging Face's models saved with their weights, and a head that is the embedding bit by bit, for a model whose
// head reads the embedding. Reads both tensors if the file has such a head.
std::vector<std::string> tensors_of_another_model(const std::filesystem::path& file, const Family& family, const Model& model);

std::string hash_weights(Engine& engine);  // 16 hex digits of XXH64 over master weights
// `metadata`: texts that the file has beside the tensors.
void save_weights(Engine& engine, const std::filesystem::path& file, std::map<std::string, std::string> metadata = {});

}  // namespace terrace::lm
