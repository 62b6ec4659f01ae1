// Reads weights into an engine and writes them out of it, chunk by chunk, from and to a safetensors file; and computes their
// hash. The whole model is never in memory at once.
//
// Threads: as for Engine. Errors: Error with the file and tensor; AnotherModel if the file lacks a tensor or it has another
//          shape.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/models/family.h>
#include <terrace/offload/io/io_choice.h>
#include <terrace/parallel/run/engine.h>

namespace terrace::lm {

struct AnotherModel : Error {
  explicit AnotherModel(const std::string& what) : Error(what, ErrorKind::refused) {}
};

// Weights from a safetensors file with Hugging Face's names for a model of that family; names may lack the family's optional
// prefix. All shapes are checked at once. If the file has more positions than the model, the first ones are used.
WeightSource weights_from(const std::filesystem::path& file, const Family& family, const Model& model, const IoChoice& io = {});
// The number of positions in the file's position embedding; 0 for a model without one.
std::uint64_t positions_in(const std::filesystem::path& file, const Family& family, const Model& model);

// The tensors of the file that the model does not have; if there are any, the file belongs to another model. Two kinds are
// ignored: buffers that Hugging Face's models saved with their weights, and, if the model's head shares the embedding, a head
// that equals the embedding bit by bit (this check reads both tensors).
std::vector<std::string> tensors_of_another_model(const std::filesystem::path& file, const Family& family, const Model& model);

std::string hash_weights(Engine& engine);  // 16 hex digits of XXH64 over master weights
// `metadata`: texts to store in the file in addition to the tensors.
void save_weights(Engine& engine, const std::filesystem::path& file, std::map<std::string, std::string> metadata = {},
                  const IoChoice& io = {});

}  // namespace terrace::lm
