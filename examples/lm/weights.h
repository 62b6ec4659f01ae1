// Weights in and out of an engine, chunk by chunk: first values from Philox, from and to a safetensors file, and their hash.
// The model never exists whole.
//
// Threads: as Engine. Errors: Error naming file and tensor when a file lacks one or has another shape.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/parallel/engine.h>

namespace terrace::lm {

// Each parameter's Init, drawn by (seed, name, index): the same values for every layout and order.
WeightRange random_weights(std::uint64_t seed);
// From a safetensors file with Hugging Face's names; a GPT-2 file may lack the prefix "transformer.". Checked whole, at once.
WeightRange weights_from(const std::filesystem::path& file, const Model& model);

// What else the file holds: of another model, or of no use to any.
std::vector<std::string> tensors_of_no_use(const std::filesystem::path& file, const Model& model);

std::string hash_weights(Engine& engine);  // 16 hex digits of XXH64 over master weights
void save_weights(Engine& engine, const std::filesystem::path& file);

}  // namespace terrace::lm
